"""Images as tiles of a few large pictures, which compress far better than files of their own.

SPLIT_00.jpeg, SPLIT_01.jpeg … (or .webp, .png) hold square tiles row by row, SPLIT_labels.npy their labels; the last
sheet may end in tiles that belong to no image.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from rarefish.data.arrays import Arrays, flat_labels
from rarefish.errors import DataError
from rarefish.io import open_regular

SUFFIXES = (".jpeg", ".webp", ".png")


def find_sheets(folder: Path, split: str) -> list[Path]:
    """In order; none where the folder has other files."""
    numbers = {path: path.stem.removeprefix(f"{split}_") for path in folder.glob(f"{split}_[0-9]*")}
    found = [path for path, number in numbers.items() if path.suffix in SUFFIXES and number.isdecimal()]
    return sorted(found, key=lambda path: int(numbers[path]))


def read_sheets(folder: Path, split: str, pixels: int) -> Arrays:
    """The images of a split, tiles of `pixels` × `pixels`."""
    labels_file, sheets = folder / f"{split}_labels.npy", find_sheets(folder, split)
    if not sheets or not labels_file.exists():
        raise DataError(f"{folder} has no sheets {split}_00, {split}_01 … with {split}_labels.npy.")
    labels = _read_labels(labels_file)
    images = np.concatenate([_cut(path, pixels) for path in sheets])
    a_sheet = len(images) // len(sheets)
    if not len(images) - a_sheet < len(labels) <= len(images):
        raise DataError(
            f"{folder} has {len(labels)} labels but tiles for {len(images)} images. Is a sheet missing or too many?"
        )
    return Arrays(images[: len(labels)], labels)


def _read_labels(path: Path) -> np.ndarray:
    with open_regular(path) as file:
        try:
            return flat_labels(np.load(file, allow_pickle=False), path)
        except DataError:
            raise
        except Exception as error:  # a damaged file makes NumPy raise almost anything
            raise DataError(f"{path} is damaged or not an .npy file: {error}. Fetch it again.") from error


def _cut(path: Path, pixels: int) -> np.ndarray:
    try:
        with open_regular(path) as file, Image.open(file) as opened:
            sheet = np.asarray(opened.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # a damaged picture makes Pillow raise almost anything
        raise DataError(f"{path} cannot be read: {error}.") from error
    down, across = sheet.shape[0] // pixels, sheet.shape[1] // pixels
    if sheet.shape[:2] != (down * pixels, across * pixels):
        raise DataError(f"{path} is {sheet.shape[0]} × {sheet.shape[1]}, not made of tiles of {pixels} pixels.")
    return sheet.reshape(down, pixels, across, pixels, 3).swapaxes(1, 2).reshape(-1, pixels, pixels, 3)
