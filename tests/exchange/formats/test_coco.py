"""COCO: the structure of an export, and files of other tools."""

import json
from pathlib import Path

from rarefish.exchange.exporter import export_boxes
from rarefish.exchange.importer import import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.boxed_images import IMAGES, NAMES
from tests.exchange.labeled_workspaces import asked
from tests.workspaces import make_workspace


def test_coco(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
    whole = json.loads(places["coco"].read_text())
    assert {c["id"]: c["name"] for c in whole["categories"]} == {1: "cat", 2: "dog", 3: "owl"}
    assert [image["id"] for image in whole["images"]] == asked(store)
    assert whole["images"][0]["rarefish"] | {"hash": ""} == {
        **{"image": asked(store)[0], "hash": "", "round": 1, "similarity": 1.0, "center": 1},
        **{"prediction": "cat", "probability": 0.7},
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


def test_coco_boxes(tmp_path: Path) -> None:
    whole = json.loads(export_boxes(IMAGES, NAMES, "coco", tmp_path / "boxes.json").read_text())
    assert {row["id"]: row["name"] for row in whole["categories"]} == {1: NAMES[0], 2: "owl"}
    assert whole["images"] == [
        {"id": 1, "file_name": "night & day/1.png", "width": 200, "height": 100},
        {"id": 2, "file_name": "2.png", "width": 50, "height": 50},
    ]
    assert whole["annotations"] == [
        {
            **{"id": 1, "image_id": 1, "category_id": 2, "bbox": [20, 10, 40, 20], "area": 800, "iscrowd": 0},
            "score": 0.75,
        },
        {"id": 2, "image_id": 1, "category_id": 1, "bbox": [0, 90, 200, 10], "area": 2000, "iscrowd": 0},
    ]
