"""Images as files: a folder with one folder a class, or a CSV manifest."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rarefish.errors import DataError, list_some

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass(frozen=True)
class ImageFiles:
    """A data set of image files: item i is (image, label), the image decoded, resized and scaled to 0 … 1."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    size: tuple[int, int] = (224, 224)
    """Height and width."""
    mode: str = "RGB"
    unreadable: tuple[Path, ...] = field(default=())
    """Files that were left out because they cannot be decoded."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def targets(self) -> list[int]:
        return list(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return decode(self.paths[index], self.size, self.mode, str(self.paths[index])), self.labels[index]


def decode(source: Path | BytesIO, size: tuple[int, int], mode: str, name: str) -> Tensor:
    """An image (channels, height, width) of that size, from 0 to 1."""
    height, width = size
    try:
        with Image.open(source) as image:
            pixels = np.array(image.convert(mode).resize((width, height), Image.Resampling.BILINEAR))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} cannot be decoded: {error}. Mend or remove it.") from error
    image = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None])
    return image.permute(2, 0, 1).float().div_(255)


def read_folder(
    folder: Path | str, *, size: tuple[int, int] = (224, 224), mode: str = "RGB", on_error: str = "stop"
) -> ImageFiles:
    """Every image below `folder`/CLASS/; classes by name. `on_error` as for `read_manifest`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder.")
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    if not classes:
        raise DataError(f"{folder} has no folders inside, one a class.")
    found = [
        (p, i) for i, c in enumerate(classes) for p in sorted((folder / c).rglob("*")) if p.suffix.lower() in SUFFIXES
    ]
    return _checked([p for p, _ in found], [i for _, i in found], classes, size, mode, on_error, folder)


def read_manifest(
    manifest: Path | str, *, size: tuple[int, int] = (224, 224), mode: str = "RGB", on_error: str = "stop"
) -> ImageFiles:
    """The images a CSV file lists in the columns path (relative to the file) and label (a name or a number).

    `on_error`: `stop` at the first file that cannot be decoded, `skip` them (they are listed in the result), or
    `later`: do not look before an image is asked for.
    """
    manifest = Path(manifest)
    with manifest.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise DataError(
                f"{manifest} has the columns {list_some(reader.fieldnames or ())}; it needs path and label."
            )
        rows = [(manifest.parent / row["path"], row["label"]) for row in reader]
    names = {label for _, label in rows}
    classes = tuple(sorted(names, key=int) if all(name.isdigit() for name in names) else sorted(names))
    place = {name: i for i, name in enumerate(classes)}
    return _checked([p for p, _ in rows], [place[c] for _, c in rows], classes, size, mode, on_error, manifest)


def _checked(
    paths: Sequence[Path],
    labels: Sequence[int],
    classes: tuple[str, ...],
    size: tuple[int, int],
    mode: str,
    on_error: str,
    source: Path,
) -> ImageFiles:
    bad: list[Path] = []
    if on_error != "later":
        bad = [path for path in paths if not _is_readable(path)]
    if bad and on_error == "stop":
        shown = list_some([p.name for p in bad], 3)
        raise DataError(f"{len(bad)} of {len(paths)} images cannot be decoded: {shown}. Mend them, or skip them.")
    kept = [(p, label) for p, label in zip(paths, labels, strict=True) if p not in set(bad)]
    if not kept:
        raise DataError(f"{source} has no image that can be read.")
    return ImageFiles(tuple(p for p, _ in kept), tuple(c for _, c in kept), classes, size, mode, tuple(bad))


def _is_readable(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError):
        return False
    return True
