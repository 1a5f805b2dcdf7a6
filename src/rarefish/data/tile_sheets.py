"""Read images stored as tiles of a few large pictures, which compress far better than separate files.

SPLIT_00.jpeg, SPLIT_01.jpeg … (or .webp, .png) contain square tiles row by row, and SPLIT_labels.npy contains their
labels. The last sheet may end with unused tiles.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from rarefish.data.arrays import Arrays, flat_labels
from rarefish.errors import DataError
from rarefish.io import open_regular

SUFFIXES = (".jpeg", ".webp", ".png")


def find_sheets(folder: Path, split: str) -> list[Path]:
    """Returns the sheets of a split in order, or an empty list if there are none."""
    numbers = {path: path.stem.removeprefix(f"{split}_") for path in folder.glob(f"{split}_[0-9]*")}
    found = [path for path, number in numbers.items() if path.suffix in SUFFIXES and number.isdecimal()]
    return sorted(found, key=lambda path: int(numbers[path]))


def read_sheets(folder: Path, split: str, pixels: int) -> Arrays:
    """Returns the images of a split, whose tiles are `pixels` × `pixels`."""
    labels_file, sheets = folder / f"{split}_labels.npy", find_sheets(folder, split)
    if not sheets or not labels_file.exists():
        raise DataError(f"{folder} has no sheets {split}_00, {split}_01 … with {split}_labels.npy.")
    labels = _read_labels(labels_file)
    images = np.concatenate([_cut_tiles(path, pixels) for path in sheets])
    per_sheet = len(images) // len(sheets)
    if not len(images) - per_sheet < len(labels) <= len(images):
        raise DataError(
            f"{folder} has {len(labels)} labels but tiles for {len(images)} images. "
            "Check that no sheet is missing or surplus."
        )
    return Arrays(images[: len(labels)], labels)


def _read_labels(path: Path) -> np.ndarray:
    with open_regular(path) as file:
        try:
            return flat_labels(np.load(file, allow_pickle=False), path)
        except DataError:
            raise
        except Exception as error:  # NumPy raises almost any exception for a damaged file
            raise DataError(f"{path} is damaged or not an .npy file: {error}. Download it again.") from error


def _cut_tiles(path: Path, pixels: int) -> np.ndarray:
    try:
        with open_regular(path) as file, Image.open(file) as opened:
            sheet = np.asarray(opened.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow raises almost any exception for a damaged picture
        raise DataError(f"Cannot read {path}: {error}.") from error
    down, across = sheet.shape[0] // pixels, sheet.shape[1] // pixels
    if sheet.shape[:2] != (down * pixels, across * pixels):
        raise DataError(
            f"{path} has {sheet.shape[0]} × {sheet.shape[1]} pixels, which is not a grid of tiles of {pixels} pixels."
        )
    return sheet.reshape(down, pixels, across, pixels, 3).swapaxes(1, 2).reshape(-1, pixels, pixels, 3)
