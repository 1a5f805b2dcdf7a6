"""Each format has the structure that its tools expect; where a tool is installed, it reads the export itself."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import datasets
import pytest
from PIL import Image

from rarefish.exchange.export import FORMATS, export
from rarefish.exchange.formats.label_studio import to_config
from rarefish.exchange.import_labels import import_labels
from rarefish.exchange.names import path_to_text, to_folder_names
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import answers, asked, make_labeled
from tests.workspaces import CLASSES, make_workspace


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("made")
    store = make_labeled(folder / "a")
    return store, {format: export(store, "picks", format, folder / format) for format in FORMATS}


def test_csv(made: tuple[Store, dict[str, Path]]) -> None:
    store, places = made
    with places["csv"].open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["image"]) for row in table if row["who"] != "bob" or row["answer"] != "class"] == asked(store)
    first = table[0]
    assert (first["path"], first["round"], first["rank"], first["similarity"]) == ("image 00000.png", "1", "0", "100.0")
    assert (first["class"], first["who"], first["prediction"], first["chance"]) == ("cat", "ann", "cat", "0.7")


def test_imagefolder_is_what_torchvision_reads(made: tuple[Store, dict[str, Path]]) -> None:
    store, places = made
    folder = places["imagefolder"]
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == [*CLASSES, "unlabeled"]
    found = {int(p.stem): p.parent.name for p in folder.glob("*/*.png") if p.parent.name != "unlabeled"}
    assert found == {image: CLASSES[number] for image, number in settled(store).items()}


def test_moving_a_file_to_another_folder_is_an_answer(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "a", pool=6, trusted=1, picks=3)
    folder = export(store, "picks", "imagefolder", tmp_path / "sorted")
    first = sorted((folder / "unlabeled").iterdir())[0]
    first.rename(folder / "owl" / "renamed.png")
    assert import_labels(store, "imagefolder", folder, "me").count == 1
    assert answers(store) == {(asked(store)[0], "me", "class", 2)}


def test_coco(made: tuple[Store, dict[str, Path]]) -> None:
    store, places = made
    whole = json.loads(places["coco"].read_text())
    assert {c["id"]: c["name"] for c in whole["categories"]} == {1: "cat", 2: "dog", 3: "owl"}
    assert [image["id"] for image in whole["images"]] == asked(store)
    assert whole["images"][0]["rarefish"] | {"hash": ""} == {
        **{"image": asked(store)[0], "hash": "", "round": 1, "similarity": 100.0, "center": 1},
        **{"prediction": "cat", "chance": 0.7},
    }
    labels = {one["image_id"]: one["category_id"] - 1 for one in whole["annotations"]}
    assert labels == settled(store) and whole["annotations"][0]["bbox"] == [0, 0, 24, 24]


def test_coco_of_others_goes_by_file_names(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=1, picks=3)
    whole = {
        "images": [{"id": 500, "file_name": "image 00001.png"}],
        "categories": [{"id": 0, "name": "owl"}],
        "annotations": [{"id": 1, "image_id": 500, "category_id": 0}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(whole))
    assert import_labels(store, "coco", tmp_path / "coco.json", "me").count == 1
    assert settled(store) == {asked(store)[1]: 2}


def test_cvat(made: tuple[Store, dict[str, Path]]) -> None:
    store, places = made
    root = ElementTree.parse(places["cvat"]).getroot()
    assert root.tag == "annotations" and root.findtext("version") == "1.1"
    assert [name.text for name in root.findall("meta/task/labels/label/name")] == list(CLASSES)
    images = root.findall("image")
    assert [image.get("id") for image in images] == [str(number) for number in range(len(asked(store)))]
    assert set(images[0].attrib) == {"id", "name", "width", "height"}
    tags = [[tag.get("label") for tag in image.findall("tag")] for image in images]
    labels = [settled(store).get(image) for image in asked(store)]
    assert tags == [[] if label is None else [CLASSES[label]] for label in labels]


def test_label_studio(made: tuple[Store, dict[str, Path]]) -> None:
    store, places = made
    tasks = json.loads((places["label-studio"] / "tasks.json").read_text())
    assert [task["meta"]["rarefish"]["image"] for task in tasks] == asked(store)
    (prediction,) = tasks[0]["predictions"]
    assert prediction["score"] == 0.7 and prediction["result"][0]["value"] == {"choices": ["cat"]}
    assert sum(len(task.get("annotations", [])) for task in tasks) == len(answers(store))
    config = ElementTree.fromstring((places["label-studio"] / "labeling_config.xml").read_text())
    choices = config.find("Choices")
    assert choices is not None and choices.get("toName") == "image"
    assert [choice.get("value") for choice in choices] == [*CLASSES, "(none of these)", "(unsure)"]


def test_label_studio_choices_never_collide() -> None:
    names = [c.get("value") for c in ElementTree.fromstring(to_config(["(unsure)", '"a" & <b>'])).iter("Choice")]
    assert names == ["(unsure)", '"a" & <b>', "(none of these)", "(unsure)_"]


def test_label_studio_knows_people_by_address_or_number(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=1, picks=4)
    people: list[Any] = [{"email": "a@b.c"}, 17, None, "dora"]
    tasks = [
        {"data": {"image": f"/data/local-files/?d=pool/image%200000{n}.png"}, "annotations": [_annotation(n, by)]}
        for n, by in enumerate(people)
    ]
    tasks[0]["annotations"].append({"id": 9, "was_cancelled": True, "result": [], "completed_by": 18})
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    assert import_labels(store, "label-studio", tmp_path / "tasks.json", "me").count == 5
    assert {who for _, who, _, _ in answers(store)} == {"a@b.c", "label-studio user 17", "me", "dora"}


def _annotation(number: int, by: object) -> dict[str, Any]:
    result = {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
    return {"id": number, "completed_by": by, "result": [result], "updated_at": "2026-01-01T00:00:00Z"}


def test_an_answer_of_ours_that_was_changed_there_is_another_persons(tmp_path: Path) -> None:
    store = make_labeled(tmp_path / "a")
    folder = export(store, "labels", "label-studio", tmp_path / "made")
    tasks = json.loads((folder / "tasks.json").read_text())
    for task in tasks:
        for row in task.get("annotations", []):
            row |= {"completed_by": {"email": "who@imports.it"}}
    tasks[0]["annotations"][0]["result"][0]["value"]["choices"] = ["owl"]
    (folder / "tasks.json").write_text(json.dumps(tasks))
    done = import_labels(store, "label-studio", folder, "me")
    assert done.count == 1 and (asked(store)[0], "who@imports.it", "class", 2) in answers(store)


def test_fiftyone(made: tuple[Store, dict[str, Path]]) -> None:
    """As FiftyOne 1.22 loads it, see docs/guides/exchange.md."""
    store, places = made
    metadata = json.loads((places["fiftyone"] / "metadata.json").read_text())
    samples = json.loads((places["fiftyone"] / "samples.json").read_text())["samples"]
    assert "version" not in metadata and metadata["default_classes"] == list(CLASSES)
    assert set(samples[0]) - set(metadata["sample_fields"]) == {"filepath", "tags", "metadata"}
    assert all((places["fiftyone"] / sample["filepath"]).is_file() for sample in samples)
    truths = {s["rarefish_image"]: s["ground_truth"]["label"] for s in samples if s["ground_truth"]}
    assert truths == {image: CLASSES[number] for image, number in settled(store).items()}
    assert samples[0]["prediction"] == {"_cls": "Classification", "tags": [], "label": "cat", "confidence": 0.7}


def test_fiftyone_without_our_fields_goes_by_content(tmp_path: Path) -> None:
    """As FiftyOne writes a data set itself, with its own kinds of values."""
    labeled, twin = make_labeled(tmp_path / "a"), make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)
    folder = export(labeled, "labels", "fiftyone", tmp_path / "made")
    samples = json.loads((folder / "samples.json").read_text())["samples"]
    for number, sample in enumerate(samples):
        del sample["rarefish_image"], sample["rarefish_hash"]
        sample |= {"_id": {"$oid": f"{number:024x}"}, "created_at": {"$date": "2026-11-16T06:52:37.474Z"}}
    (folder / "samples.json").write_text(json.dumps({"samples": samples}))
    assert not import_labels(twin, "fiftyone", folder, "me").unknown and settled(twin) == settled(labeled)


def test_huggingface_loads_it(made: tuple[Store, dict[str, Path]]) -> None:
    store, places = made
    table: Any = datasets.load_from_disk(str(places["huggingface"]))
    assert table.features["label"].names == list(CLASSES) and len(table) == len(asked(store))
    row = table[0]
    assert isinstance(row["image"], Image.Image) and row["image"].size == (24, 24)
    assert (row["label"], row["round"], row["similarity"], row["center"]) == (0, 1, 100.0, 1)
    labels = {row["rarefish_image"]: row["label"] for row in table if row["label"] >= 0}
    assert labels == settled(store)


def test_huggingface_without_our_columns_goes_by_content(tmp_path: Path) -> None:
    labeled, twin = make_labeled(tmp_path / "a"), make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)
    table: Any = datasets.load_from_disk(str(export(labeled, "labels", "huggingface", tmp_path / "made")))
    bare = table.remove_columns(["rarefish_image", "rarefish_hash"])
    datasets.DatasetDict({"train": bare}).save_to_disk(str(tmp_path / "bare"))
    assert not import_labels(twin, "huggingface", tmp_path / "bare", "me").unknown
    assert settled(twin) == settled(labeled)


def test_names() -> None:
    assert path_to_text("wald/käfer 1%.png".encode()) == "wald/käfer 1%.png"
    assert path_to_text(b"a\xff%\n.png") == "a%FF%25%0A.png"
    folders = to_folder_names(["a/b", "a:b", "..", "x" * 300, "con. "])
    assert len(set(folders.values())) == 5 and all(0 < len(name) <= 81 and "/" not in name for name in folders.values())
