"""Images as files: a folder with one folder a class, or a CSV manifest."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rarefish.data.image_io import SUFFIXES, Source, open_picture, printable
from rarefish.errors import ArgumentError, DataError, list_some
from rarefish.hashing import digest, digest_files
from rarefish.io import open_regular


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
    mean: tuple[float, ...] | None = None
    """Taken from every channel, one number each or one for all; None: images stay 0 … 1."""
    std: tuple[float, ...] | None = None
    """What every channel is then divided by."""

    def __post_init__(self) -> None:
        check_scale(self.mode, self.mean, self.std)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def targets(self) -> list[int]:
        return list(self.labels)

    def only(self, rows: Sequence[int]) -> "ImageFiles":
        """The files at those positions, of the same classes."""
        return replace(self, paths=tuple(self.paths[i] for i in rows), labels=tuple(self.labels[i] for i in rows))

    def fingerprints(self, *, with_contents: bool = False) -> dict[str, str]:
        """Hashes by which the data set is known to be the same, by name."""
        return {
            "files": digest_files(self.paths, with_contents=with_contents),
            "labels": digest([self.classes, self.labels]),
            "preprocessing": digest([self.size, self.mode, self.mean, self.std]),
        }

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        return scale(decode(path, self.size, self.mode, str(path)), self.mean, self.std), self.labels[index]


def decode(source: Source, size: tuple[int, int], mode: str, name: str) -> Tensor:
    """An image (channels, height, width) of that size, from 0 to 1."""
    height, width = size
    picture = open_picture(source, name).convert(mode)
    pixels = np.array(picture.resize((width, height), Image.Resampling.BILINEAR))
    image = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None])
    return image.permute(2, 0, 1).float().div_(255)


def scale(image: Tensor, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Tensor:
    """The image less the mean, over the standard deviation; both by channel."""
    if mean is not None:
        image = image - torch.tensor(mean)[:, None, None]
    return image if std is None else image / torch.tensor(std)[:, None, None]


def check_scale(mode: str, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Complains about another number of means or deviations than channels, and about deviations of 0."""
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) not in (1, len(mode)):
            raise ArgumentError(f"Images in mode {mode} need {len(mode)} numbers for {name}, not {len(values)}.")
    if std is not None and min(std) <= 0:
        raise ArgumentError(f"Every std must be above 0, not {std}.")


def find_images(folder: Path) -> list[Path]:
    """Every file below the folder that is called an image, in order; hidden ones are left out."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_cannot_list):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".") and _is_called_image(name)]
    return sorted(found)


def read_folder(
    folder: Path | str, *, size: tuple[int, int] = (224, 224), mode: str = "RGB", on_error: str = "stop"
) -> ImageFiles:
    """Every image below `folder`/CLASS/; classes by name. `on_error` as for `read_manifest`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder.")
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if not classes:
        raise DataError(f"{folder} has no folders inside, one a class.")
    found = [(path, i) for i, name in enumerate(classes) for path in find_images(folder / name)]
    return _checked([p for p, _ in found], [i for _, i in found], classes, size, mode, on_error, folder)


def read_manifest(
    manifest: Path | str, *, size: tuple[int, int] = (224, 224), mode: str = "RGB", on_error: str = "stop"
) -> ImageFiles:
    """The images a CSV file lists in the columns path (relative to the file) and label (a name or a number).

    `on_error`: `stop` at the first file that cannot be decoded, `skip` them (they are listed in the result), or
    `later`: do not look before an image is asked for.
    """
    manifest = Path(manifest)
    rows = [(manifest.parent / path, label) for path, label in read_columns(manifest, ("path", "label"))]
    names = {label for _, label in rows}
    classes = tuple(sorted(names, key=int) if all(name.isdigit() for name in names) else sorted(names))
    place = {name: i for i, name in enumerate(classes)}
    return _checked([p for p, _ in rows], [place[c] for _, c in rows], classes, size, mode, on_error, manifest)


def read_columns(manifest: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Those columns of a CSV file, row by row; complains about a file that has them not, or is no CSV file."""
    with open_regular(manifest) as file:
        try:
            reader = csv.DictReader(TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            if not set(columns) <= set(reader.fieldnames or ()):
                wanted = " and ".join(columns)
                raise DataError(f"{manifest} has the columns {list_some(reader.fieldnames or ())}; it needs {wanted}.")
            rows = [tuple(row[column] for column in columns) for row in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{manifest} is not a CSV file in UTF-8: {error}.") from error
    short = next((number for number, row in enumerate(rows, start=1) if None in row), None)
    if short:
        raise DataError(
            f"{manifest} has fewer cells in row {short} than columns. Give each row {' and '.join(columns)}."
        )
    return rows


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
        shown = list_some([printable(p.name) for p in bad], 3)
        raise DataError(f"{len(bad)} of {len(paths)} images cannot be decoded: {shown}. Mend them, or skip them.")
    is_bad = set(bad)
    kept = [(p, label) for p, label in zip(paths, labels, strict=True) if p not in is_bad]
    if not kept:
        raise DataError(f"{source} has no image that can be read.")
    return ImageFiles(tuple(p for p, _ in kept), tuple(c for _, c in kept), classes, size, mode, tuple(bad))


def _is_readable(path: Path) -> bool:
    try:
        open_picture(path, str(path))
    except DataError:
        return False
    return True


def _cannot_list(error: OSError) -> None:
    raise DataError(f"{printable(str(error.filename))} cannot be listed: {error.strerror}.") from error


def _is_called_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES
