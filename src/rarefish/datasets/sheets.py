"""Images as tiles of a few large pictures, which compress far better than files of their own.

SPLIT_00.jpeg, SPLIT_01.jpeg … (or .webp, .png) hold square tiles row by row, SPLIT_labels.npy their labels; the last
sheet may end in tiles that belong to no image.
"""

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from rarefish.datasets.arrays import Arrays
from rarefish.errors import DataError

SUFFIXES = (".jpeg", ".webp", ".png")


def find_sheets(folder: Path, split: str) -> list[Path]:
    """In order; none where the folder has other files."""
    found = [path for path in folder.glob(f"{split}_[0-9]*") if path.suffix in SUFFIXES]
    return sorted(found, key=lambda path: int(path.stem.rpartition("_")[2]))


def read_sheets(folder: Path, split: str, pixels: int) -> Arrays:
    """The images of a split, tiles of `pixels` × `pixels`."""
    labels_file, sheets = folder / f"{split}_labels.npy", find_sheets(folder, split)
    if not sheets or not labels_file.exists():
        raise DataError(f"{folder} has no sheets {split}_00, {split}_01 … with {split}_labels.npy.")
    labels = np.load(labels_file, allow_pickle=False)
    images = np.concatenate([_cut(path, pixels) for path in sheets])
    a_sheet = len(images) // len(sheets)
    if not len(images) - a_sheet < len(labels) <= len(images):
        raise DataError(
            f"{folder} has {len(labels)} labels but tiles for {len(images)} images. Is a sheet missing or too many?"
        )
    return Arrays(images[: len(labels)], labels)


def _cut(path: Path, pixels: int) -> np.ndarray:
    try:
        with Image.open(path) as opened:
            sheet = np.asarray(opened.convert("RGB"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    down, across = sheet.shape[0] // pixels, sheet.shape[1] // pixels
    if sheet.shape[:2] != (down * pixels, across * pixels):
        raise DataError(f"{path} is {sheet.shape[0]} × {sheet.shape[1]}, not made of tiles of {pixels} pixels.")
    return sheet.reshape(down, pixels, across, pixels, 3).swapaxes(1, 2).reshape(-1, pixels, pixels, 3)
