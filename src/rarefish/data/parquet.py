"""A dataset of the encoded images in a column of Parquet files, which are decoded on access."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from rarefish.data.hashing import content_id, digest, digest_files
from rarefish.data.image_files import check_scale, decode, scale
from rarefish.errors import ArgumentError, DataError
from rarefish.io import open_regular

IMAGE_COLUMNS = ("image", "img", "bytes")


@dataclass(frozen=True)
class ParquetImages:
    """A dataset of encoded images in Parquet files; two row groups are kept in memory at a time."""

    files: tuple[Path, ...]
    groups: tuple[tuple[int, int], ...]
    """For each row group, the position of its file in `files` and its number in that file."""
    ends: tuple[int, ...]
    """For each row group, the number of images up to and including it."""
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
        """Returns named hashes that change when the dataset changes."""
        return {
            "files": digest_files(self.files, with_contents=with_contents),
            "rows": digest([self.groups, self.ends, self.column]),
            "preprocessing": digest([self.size, self.mode, self.mean, self.std]),
        }

    def content_ids(self, rows: Sequence[int]) -> list[str]:
        """Returns a hash of each encoded image, which is empty if it cannot be read."""
        found = []
        for row in rows:
            try:
                found.append(content_id(self._content(row)))
            except DataError:
                found.append("")
        return found

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = decode(BytesIO(self._content(index)), self.size, self.mode, f"row {index}")
        return scale(image, self.mean, self.std), -1

    def _content(self, index: int) -> bytes:
        """Returns an encoded image."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self.ends, index)
        file, group = self.groups[number]
        row = index - (self.ends[number - 1] if number else 0)
        try:
            value = _read_group(self.files[file], group, self.column)[row].as_py()
        except Exception as error:  # pyarrow raises almost any exception for a damaged file
            raise DataError(f"Cannot read row {index} from {self.files[file]}: {error}.") from error
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise DataError(f"Row {index} has no image in the column {self.column}.")
        return content

    @property
    def paths(self) -> Sequence[str]:
        return _RowNames(self)


@dataclass(frozen=True)
class _RowNames(Sequence[str]):
    """The location of each image, as FILE#ROW."""

    images: ParquetImages

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        number = bisect_right(self.images.ends, index)
        first = next(n for n, (file, _) in enumerate(self.images.groups) if file == self.images.groups[number][0])
        row = index - (self.images.ends[first - 1] if first else 0)
        return f"{self.images.files[self.images.groups[number][0]]}#{row}"


def open_parquet(files: Sequence[Path], size: tuple[int, int], mode: str) -> ParquetImages:
    """Opens the images in the column image, img or bytes of the files."""
    if not find_spec("pyarrow"):
        raise ArgumentError("Parquet needs an additional package: pip install 'rarefish[parquet]'.")
    columns, sizes = zip(*map(_read_footer, files), strict=True)
    column = next((name for name in IMAGE_COLUMNS if name in columns[0]), None)
    if column is None:
        raise DataError(
            f"{files[0]} has the columns {', '.join(columns[0])}, but needs one of {', '.join(IMAGE_COLUMNS)}."
        )
    other = next((place for place, names in enumerate(columns) if column not in names), None)
    if other is not None:
        raise DataError(
            f"{files[0]} has its images in the column {column}, but {files[other]} has the columns "
            f"{', '.join(columns[other])}. All files must have the same columns."
        )
    groups = [(place, number) for place, counts in enumerate(sizes) for number in range(len(counts))]
    ends = tuple(accumulate(count for counts in sizes for count in counts))
    if not ends or not ends[-1]:
        raise DataError(f"{files[0]} has no rows.")
    return ParquetImages(tuple(files), tuple(groups), ends, column, size, mode)


def _read_footer(path: Path) -> tuple[list[str], list[int]]:
    """Returns the column names and the number of rows in each row group."""
    from pyarrow.parquet import ParquetFile

    with open_regular(path) as opened:
        try:
            with ParquetFile(opened) as file:
                sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
                return list(file.schema_arrow.names), sizes
        except Exception as error:  # pyarrow raises almost any exception for a damaged file
            raise DataError(f"{path} is not a Parquet file: {error}") from error


@lru_cache(maxsize=2)
def _read_group(path: Path, group: int, column: str) -> Any:
    from pyarrow.parquet import ParquetFile

    with open_regular(path) as opened, ParquetFile(opened) as file:
        return file.read_row_group(group, columns=[column]).column(0).combine_chunks()
