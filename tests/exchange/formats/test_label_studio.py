"""Label Studio: tasks, the labeling configuration, and annotations with their annotators."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rarefish.exchange.exporter import export, export_boxes
from rarefish.exchange.formats.label_studio import to_config
from rarefish.exchange.importer import import_labels
from rarefish.workspace.store import Store
from tests.exchange.boxed_images import IMAGES, NAMES
from tests.exchange.labeled_workspaces import answers, asked, make_labeled
from tests.workspaces import CLASSES, make_workspace


def test_label_studio(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
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


def test_label_studio_boxes_are_in_percent(tmp_path: Path) -> None:
    folder = export_boxes(IMAGES, NAMES, "label-studio", tmp_path / "boxes")
    first, second = json.loads((folder / "tasks.json").read_text())
    assert first["data"] == {"image": "/data/local-files/?d=night%20%26%20day/1.png"}
    assert second == {"data": {"image": "/data/local-files/?d=2.png"}, "predictions": []}
    (prediction,) = first["predictions"]
    values = [region["value"] for region in prediction["result"]]
    assert values == [
        {"x": 10, "y": 10, "width": 20, "height": 20, "rotation": 0, "rectanglelabels": ["owl"]},
        {"x": 0, "y": 90, "width": 100, "height": 10, "rotation": 0, "rectanglelabels": [NAMES[0]]},
    ]
    assert [region.get("score") for region in prediction["result"]] == [0.75, None]
    config = ElementTree.fromstring((folder / "labeling_config.xml").read_text())
    control, shown = config.find("RectangleLabels"), config.find("Image")
    assert control is not None and shown is not None
    assert [label.get("value") for label in control.findall("Label")] == list(NAMES)
    for region in prediction["result"]:
        assert (region["from_name"], region["to_name"]) == (control.get("name"), shown.get("name"))
        assert (region["type"], region["original_width"], region["original_height"]) == ("rectanglelabels", 200, 100)
