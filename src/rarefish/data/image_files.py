"""Datasets of labeled image files: a folder with one subfolder per class, or a CSV manifest."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rarefish.data.file_listing import ListedFile, list_trusted, name_classes
from rarefish.data.hashing import content_id_of_file, digest, digest_files
from rarefish.data.image_io import Source, open_picture, printable
from rarefish.errors import ArgumentError, DataError, list_some


@dataclass(frozen=True)
class ImageFiles:
    """A dataset of image files. Its items are (image, label), with images decoded, resized and scaled to 0 … 1."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    size: tuple[int, int] = (224, 224)
    """Height and width of the images."""
    mode: str = "RGB"
    unreadable: tuple[Path, ...] = field(default=())
    """Files that were left out because they could not be decoded."""
    mean: tuple[float, ...] | None = None
    """Value to subtract from each channel: one number per channel, or one for all. None keeps images in 0 … 1."""
    std: tuple[float, ...] | None = None
    """Value by which each channel is then divided: one number per channel, or one for all."""

    def __post_init__(self) -> None:
        check_scale(self.mode, self.mean, self.std)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def targets(self) -> list[int]:
        return list(self.labels)

    def only(self, rows: Sequence[int]) -> "ImageFiles":
        """Returns a dataset of the files at the given positions, with the same classes."""
        return replace(self, paths=tuple(self.paths[i] for i in rows), labels=tuple(self.labels[i] for i in rows))

    def fingerprints(self, *, with_contents: bool = False) -> dict[str, str]:
        """Returns hashes by name, which change when the dataset changes."""
        return {
            "files": digest_files(self.paths, with_contents=with_contents),
            "labels": digest([self.classes, self.labels]),
            "preprocessing": digest([self.size, self.mode, self.mean, self.std]),
        }

    def content_ids(self, rows: Sequence[int]) -> list[str]:
        """Returns a hash of each file's content, which is empty if it cannot be read."""
        return [content_id_of_file(self.paths[row]) for row in rows]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        return scale(decode(path, self.size, self.mode, str(path)), self.mean, self.std), self.labels[index]


def decode(source: Source, size: tuple[int, int], mode: str, name: str) -> Tensor:
    """Returns a resized image (channels, height, width) with values from 0 to 1."""
    height, width = size
    picture = open_picture(source, name).convert(mode)
    pixels = np.array(picture.resize((width, height), Image.Resampling.BILINEAR))
    image = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None])
    return image.permute(2, 0, 1).float().div_(255)


def scale(image: Tensor, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Tensor:
    """Returns the image after subtracting the mean and dividing by the standard deviation of each channel."""
    if mean is not None:
        image = image - torch.tensor(mean)[:, None, None]
    return image if std is None else image / torch.tensor(std)[:, None, None]


def check_scale(mode: str, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Raises ArgumentError unless there is one mean and one positive standard deviation per channel, or one for all."""
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) not in (1, len(mode)):
            raise ArgumentError(f"Images in mode {mode} need {len(mode)} numbers for {name}, not {len(values)}.")
    if std is not None and min(std) <= 0:
        raise ArgumentError(f"Every std must be greater than 0, not {std}.")


def read_folder(
    folder: Path | str, *, size: tuple[int, int] = (224, 224), mode: str = "RGB", on_error: str = "stop"
) -> ImageFiles:
    """Returns every image below `folder`/CLASS/, with classes sorted by name.

    Args:
        folder: A folder with one subfolder per class. Links to folders are followed; hidden files are skipped.
        size: Height and width to which images are resized.
        mode: `RGB`, or `L` for grayscale.
        on_error: What to do with files that cannot be decoded. `stop` raises an error, `skip` leaves them out and
            lists them in the result, and `later` does not check them: the error is raised on access.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder.")
    root, files = list_trusted(folder)
    return _checked(root, files, tuple(name_classes(folder, files)), size, mode, on_error, folder)


def read_manifest(
    manifest: Path | str, *, size: tuple[int, int] = (224, 224), mode: str = "RGB", on_error: str = "stop"
) -> ImageFiles:
    """Returns the images listed in the columns path (relative to the CSV file) and label of a CSV file.

    Classes are sorted by name, or by number if all of them are numbers. The other arguments are those of
    `read_folder`.
    """
    manifest = Path(manifest)
    if manifest.is_dir():
        raise DataError(f"{manifest} is a folder, not a CSV file. Use read_folder to read it.")
    root, files = list_trusted(manifest)
    names = name_classes(manifest, files)
    classes = tuple(sorted(names, key=int) if all(name.isdigit() for name in names) else names)
    return _checked(root, files, classes, size, mode, on_error, manifest)


def full_paths(root: Path, files: Sequence[ListedFile]) -> list[Path]:
    """Returns the path of each listed file, including the root."""
    return [root / os.fsdecode(file.path) for file in files]


def _checked(
    root: Path,
    files: Sequence[ListedFile],
    classes: tuple[str, ...],
    size: tuple[int, int],
    mode: str,
    on_error: str,
    source: Path,
) -> ImageFiles:
    paths, number_of = full_paths(root, files), {name: number for number, name in enumerate(classes)}
    labels = [number_of[file.label] for file in files if file.label is not None]
    bad: list[Path] = []
    if on_error != "later":
        bad = [path for path in paths if not _is_readable(path)]
    if bad and on_error == "stop":
        shown = list_some([printable(p.name) for p in bad], 3)
        raise DataError(
            f"{len(bad)} of {len(paths)} images cannot be decoded: {shown}. Repair or remove them, or "
            "leave them out with on_error='skip'."
        )
    is_bad = set(bad)
    kept = [(p, label) for p, label in zip(paths, labels, strict=True) if p not in is_bad]
    if not kept:
        raise DataError(f"{source} has no readable images.")
    return ImageFiles(tuple(p for p, _ in kept), tuple(c for _, c in kept), classes, size, mode, tuple(bad))


def _is_readable(path: Path) -> bool:
    try:
        open_picture(path, str(path))
    except DataError:
        return False
    return True
