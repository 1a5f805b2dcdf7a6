"""Images by where they are: a folder, a CSV manifest or Parquet files; nothing is decoded before it is asked for."""

import csv
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from rarefish.datasets.files import ImageFiles, check_scale, decode, find_images, read_folder, read_manifest, scale
from rarefish.errors import ArgumentError, DataError
from rarefish.hashing import digest, digest_files

IMAGE_COLUMNS = ("image", "img", "bytes")


def open_labeled(
    source: Path,
    size: tuple[int, int],
    mode: str = "RGB",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> ImageFiles:
    """A validation set: a folder with one folder a class, or a CSV file with the columns path and label."""
    check_scale(mode, mean, std)
    read = read_folder if source.is_dir() else read_manifest
    return replace(read(source, size=size, mode=mode), mean=mean, std=std)


def open_pool(
    source: Path,
    size: tuple[int, int],
    mode: str = "RGB",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> "ImageFiles | ParquetImages":
    """A pool: all images below a folder, those a CSV file names in its column path, or Parquet files."""
    return replace(_open_pool(source, size, mode), mean=mean, std=std)


def _open_pool(source: Path, size: tuple[int, int], mode: str) -> "ImageFiles | ParquetImages":
    if not source.exists():
        raise DataError(f"There is no {source}.")
    if source.suffix == ".parquet" or (source.is_dir() and any(source.glob("*.parquet"))):
        return open_parquet([source] if source.is_file() else sorted(source.glob("*.parquet")), size, mode)
    if source.is_dir():
        paths = find_images(source)
    else:
        with source.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "path" not in (reader.fieldnames or ()):
                raise DataError(f"{source} has no column path.")
            paths = [source.parent / row["path"] for row in reader]
    if not paths:
        raise DataError(f"{source} names no images.")
    return ImageFiles(tuple(paths), (-1,) * len(paths), (), size, mode)


@dataclass(frozen=True)
class ParquetImages:
    """Images in the rows of Parquet files, as bytes; one group of rows is in memory at a time."""

    files: tuple[Path, ...]
    groups: tuple[tuple[int, int], ...]
    """(file, group of rows) of each group."""
    ends: tuple[int, ...]
    """How many images there are up to the end of each group."""
    column: str
    size: tuple[int, int]
    mode: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_scale(self.mode, self.mean, self.std)

    def __len__(self) -> int:
        return self.ends[-1]

    def fingerprints(self, *, with_contents: bool = False) -> dict[str, str]:
        """Hashes by which the data set is known to be the same, by name."""
        return {
            "files": digest_files(self.files, with_contents=with_contents),
            "rows": digest([self.groups, self.ends, self.column]),
            "preprocessing": digest([self.size, self.mode, self.mean, self.std]),
        }

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self.ends, index)
        file, group = self.groups[number]
        row = index - (self.ends[number - 1] if number else 0)
        value = _read_group(self.files[file], group, self.column)[row].as_py()
        content = value["bytes"] if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise DataError(f"Row {index} has no image in its column {self.column}.")
        image = decode(BytesIO(content), self.size, self.mode, f"row {index}")
        return scale(image, self.mean, self.std), -1

    @property
    def paths(self) -> Sequence[str]:
        return _Names(self)


@dataclass(frozen=True)
class _Names(Sequence[str]):
    """Where each image is, in words."""

    images: ParquetImages

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        number = bisect_right(self.images.ends, index)
        first = next(n for n, (file, _) in enumerate(self.images.groups) if file == self.images.groups[number][0])
        row = index - (self.images.ends[first - 1] if first else 0)
        return f"{self.images.files[self.images.groups[number][0]]}#{row}"


def open_parquet(files: Sequence[Path], size: tuple[int, int], mode: str) -> ParquetImages:
    if not find_spec("pyarrow"):
        raise ArgumentError("Parquet needs a package: pip install 'rarefish[parquet]'.")
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    groups, sizes, column = [], [], ""
    for place, path in enumerate(files):
        try:
            with ParquetFile(path) as file:
                names = file.schema_arrow.names
                column = next((name for name in IMAGE_COLUMNS if name in names), "")
                counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        except ArrowInvalid as error:
            raise DataError(f"{path} is not a Parquet file: {error}") from error
        if not column:
            raise DataError(f"{path} has the columns {', '.join(names)}; images are looked for in image.")
        groups += [(place, number) for number in range(len(counts))]
        sizes += counts
    if not sum(sizes):
        raise DataError(f"{files[0]} holds no rows.")
    return ParquetImages(tuple(files), tuple(groups), tuple(accumulate(sizes)), column, size, mode)


@lru_cache(maxsize=2)
def _read_group(path: Path, group: int, column: str) -> Any:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        return file.read_row_group(group, columns=[column]).column(0).combine_chunks()
