"""CVAT: the structure of an export."""

from pathlib import Path
from xml.etree import ElementTree

from rarefish.exchange.exporter import export_boxes
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.boxed_images import IMAGES, NAMES
from tests.exchange.labeled_workspaces import asked
from tests.workspaces import CLASSES


def test_cvat(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
    root = ElementTree.parse(places["cvat"]).getroot()
    assert root.tag == "annotations" and root.findtext("version") == "1.1"
    assert [name.text for name in root.findall("meta/task/labels/label/name")] == list(CLASSES)
    images = root.findall("image")
    assert [image.get("id") for image in images] == [str(number) for number in range(len(asked(store)))]
    assert set(images[0].attrib) == {"id", "name", "width", "height"}
    tags = [[tag.get("label") for tag in image.findall("tag")] for image in images]
    labels = [settled(store).get(image) for image in asked(store)]
    assert tags == [[] if label is None else [CLASSES[label]] for label in labels]


def test_cvat_boxes(tmp_path: Path) -> None:
    root = ElementTree.parse(export_boxes(IMAGES, NAMES, "cvat", tmp_path / "boxes.xml")).getroot()
    labels = root.findall("meta/task/labels/label")
    assert [(label.findtext("name"), label.findtext("type")) for label in labels] == [(n, "rectangle") for n in NAMES]
    first, second = root.findall("image")
    assert first.attrib == {"id": "0", "name": "night & day/1.png", "width": "200", "height": "100"}
    edges = ("label", "xtl", "ytl", "xbr", "ybr", "source")
    assert [tuple(box.get(name) for name in edges) for box in first.findall("box")] == [
        ("owl", "20.00", "10.00", "60.00", "30.00", "auto"),
        (NAMES[0], "0.00", "90.00", "200.00", "100.00", "auto"),
    ]
    assert second.get("name") == "2.png" and not list(second)
