"""COCO: the structure of an export, and files of other tools."""

import json
from pathlib import Path

from rarefish.exchange.import_labels import import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import asked
from tests.workspaces import make_workspace


def test_coco(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
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
