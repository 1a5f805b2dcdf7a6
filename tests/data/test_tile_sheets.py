"""Sheets of tiles give back the images they were made of."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rarefish.data.tile_sheets import read_sheets
from rarefish.errors import DataError


def write(folder: Path, images: np.ndarray, across: int = 3, down: int = 2) -> None:
    """Images (N, 4, 4, 3) on sheets of `down` × `across` tiles, written tile by tile."""
    a_sheet = across * down
    for number in range(-(-len(images) // a_sheet)):
        sheet = np.zeros((down * 4, across * 4, 3), np.uint8)
        for place, image in enumerate(images[number * a_sheet : (number + 1) * a_sheet]):
            row, column = divmod(place, across)
            sheet[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = image
        Image.fromarray(sheet).save(folder / f"train_{number:02}.png")
    np.save(folder / "train_labels.npy", np.arange(len(images)) % 7)


@pytest.mark.parametrize("count", [14, 603])
def test_tiles_come_back_in_order(tmp_path: Path, count: int) -> None:
    """Sheet 100 comes after sheet 11."""
    images = np.random.default_rng(0).integers(0, 256, (count, 4, 4, 3), np.uint8)
    write(tmp_path, images)
    read = read_sheets(tmp_path, "train", 4)
    assert np.array_equal(read.images, images)
    assert read.labels.tolist() == [i % 7 for i in range(count)]


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no sheets train_00"):
        read_sheets(tmp_path, "train", 4)
    write(tmp_path, np.zeros((14, 4, 4, 3), np.uint8))
    with pytest.raises(DataError, match="not a grid of tiles of 5 pixels"):
        read_sheets(tmp_path, "train", 5)
    (tmp_path / "train_03.png").write_bytes((tmp_path / "train_00.png").read_bytes())
    with pytest.raises(DataError, match="14 labels but tiles for 24"):
        read_sheets(tmp_path, "train", 4)
    (tmp_path / "train_03.png").unlink()
    (tmp_path / "train_02.png").unlink()
    with pytest.raises(DataError, match="14 labels but tiles for 12"):
        read_sheets(tmp_path, "train", 4)
    (tmp_path / "train_01.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="Cannot read .*train_01.png"):
        read_sheets(tmp_path, "train", 4)


def test_malformed_sheets_get_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, np.zeros((14, 4, 4, 3), np.uint8))
    Image.new("RGB", (4, 4)).save(tmp_path / "train_0x.png")  # no sheet of ours
    assert len(read_sheets(tmp_path, "train", 4)) == 14
    labels = tmp_path / "train_labels.npy"
    for content, message in (
        (np.zeros((14, 2), int), r"labels are int64 \(14, 2\)"),
        (np.array(3), r"labels are int64 \(\)"),
        (np.array([None] * 14), "damaged or not an .npy file"),
    ):
        np.save(labels, content)
        with pytest.raises(DataError, match=rf"train_labels\.npy.*{message}"):
            read_sheets(tmp_path, "train", 4)
    np.save(labels, np.zeros((14, 1), int))
    assert read_sheets(tmp_path, "train", 4).labels.shape == (14,)
    labels.write_bytes(b"none")
    with pytest.raises(DataError, match="damaged or not an .npy file"):
        read_sheets(tmp_path, "train", 4)
    np.save(labels, np.zeros(14, int))
    sheet = tmp_path / "train_01.png"
    raw = sheet.read_bytes()
    for content in (raw[:-60], raw[:40], raw.replace(b"IDAT", b"IDAX"), b""):
        sheet.write_bytes(content)
        with pytest.raises(DataError, match=r"train_01\.png"):
            read_sheets(tmp_path, "train", 4)
