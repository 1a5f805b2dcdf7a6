"""CVAT: the structure of an export."""

from pathlib import Path
from xml.etree import ElementTree

from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
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
