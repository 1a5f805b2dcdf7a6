"""Export: unknown formats, changed files, and URLs."""

import os
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.boxes import Box, BoxedImage
from rarefish.exchange.exporter import export, export_boxes
from rarefish.exchange.importer import import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.boxed_images import IMAGES, NAMES
from tests.exchange.labeled_workspaces import asked, make_labeled
from tests.workspaces import draw, make_workspace


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


@pytest.fixture
def twin(tmp_path: Path) -> Store:
    """The same images and picks, nothing answered."""
    return make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)


@pytest.mark.parametrize("format", ["imagefolder", "fiftyone", "huggingface"])
def test_a_file_that_changed_is_left_out(labeled: Store, twin: Store, tmp_path: Path, format: str) -> None:
    """Or the new picture would go under the label of the old one."""
    pool, told = tmp_path / "a" / "pool", list[str]()
    draw(pool / "image 00000.png", 2, 555)
    os.utime(pool / "image 00001.png")  # another time, the same content
    made = export(labeled, "labels", format, tmp_path / "made", tell=told.append)
    assert told == ["image 00000.png has changed since it was indexed. Restore the original file."]
    assert not import_labels(twin, format, made, "me").unknown
    assert settled(twin) == {image: number for image, number in settled(labeled).items() if image != asked(labeled)[0]}
    with pytest.warns(UserWarning, match="00000.png has changed"):
        export(labeled, "labels", format, tmp_path / "made")
    for file in pool.iterdir():
        draw(file, 1, int(file.stem[-3:]) + 600)
    with pytest.raises(DataError, match="All 8 images have changed"):
        export(labeled, "labels", format, tmp_path / "none")


def test_mistaken_words_are_met_with_the_nearest(labeled: Store, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Did you mean coco"):
        export(labeled, "labels", "cocoo", tmp_path / "x")
    with pytest.raises(ArgumentError, match="Did you mean labels"):
        export(labeled, "label", "coco", tmp_path / "x")
    with pytest.raises(ArgumentError, match="Did you mean cvat"):
        import_labels(labeled, "cvatt", tmp_path, "me")
    with pytest.raises(DataError, match="does not exist"):
        import_labels(labeled, "csv", tmp_path / "nowhere", "me")
    empty = make_workspace(tmp_path / "empty", pool=3, trusted=1)
    with pytest.raises(DataError, match="no picks yet"):
        export(empty, "picks", "csv", tmp_path / "x")


@pytest.mark.parametrize("format", ["coco", "cvat", "label-studio"])
def test_boxes_replace_only_earlier_exports(tmp_path: Path, format: str) -> None:
    made = export_boxes(IMAGES, NAMES, format, tmp_path / "made")
    assert export_boxes(IMAGES[:1], NAMES, format, made) == made and (tmp_path / "made~").exists()
    (tmp_path / "mine").write_text("notes")
    with pytest.raises(ArgumentError, match="was not exported by rarefish"):
        export_boxes(IMAGES, NAMES, format, tmp_path / "mine")
    with pytest.raises(ArgumentError, match="box of the class 'fish'"):
        export_boxes([BoxedImage("a.png", 9, 9, (Box(0, 0, 5, 5, "fish"),))], NAMES, format, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "made~", "mine"]


def test_boxes_have_no_place_in_other_formats(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Boxes cannot be written in the format 'csv'"):
        export_boxes(IMAGES, NAMES, "csv", tmp_path / "made")
