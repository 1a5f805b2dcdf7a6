"""The file in which embeddings are kept while they are computed: resumable, and shared by several processes.

It is a .safetensors file of fixed size with the vectors, the id of each image and one byte per row that says whether
the row is done. Rows are written before they are marked as done, so a row that a killed process left unfinished is
computed again. The file is renamed when all rows are done.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rarefish.data.embeddings import FORMAT, map_array, read_header, release
from rarefish.errors import ArgumentError, DataError, OtherModelError, printable

ID_WIDTH = 32
"""Number of characters of an id."""
HEADER = 2**16
"""Size of the header in bytes, which leaves room for the reasons why images could not be read."""
FLUSH_EVERY = 5.0
"""Number of seconds after which rows are flushed to disk and marked as done."""
COPIED_AT_ONCE = 8192
"""Number of rows that are copied from an older file at a time."""
IDS = f"S{ID_WIDTH}"


@dataclass(frozen=True)
class Layout:
    """The content of a file: what computed the vectors, and how many there are."""

    model: str
    """Key of the model, layer and preprocessing."""
    rows: int
    width: int
    dtype: str
    """`float16` or `float32`."""

    @property
    def arrays(self) -> dict[str, tuple[str, tuple[int, ...], int]]:
        """The type, the shape and the number of bytes of each array, in the order in which they are stored."""
        size = np.dtype(self.dtype).itemsize
        return {
            "embeddings": (f"F{8 * size}", (self.rows, self.width), self.rows * self.width * size),
            "ids": ("U8", (self.rows, ID_WIDTH), self.rows * ID_WIDTH),
            "done": ("U8", (self.rows,), self.rows),
        }

    def starts(self) -> dict[str, int]:
        """Returns the position of each array in the file."""
        place, found = HEADER, {}
        for name, (_, _, size) in self.arrays.items():
            found[name] = place
            place += size
        return {**found, "end": place}

    def header(self, unreadable: Mapping[int, str]) -> bytes:
        """Returns the header, with only the first reasons for unreadable images if there are too many."""
        starts, reasons = self.starts(), {str(row): printable(why) for row, why in unreadable.items()}
        entries = {
            name: {"dtype": kind, "shape": shape, "data_offsets": [starts[name] - HEADER, starts[name] - HEADER + size]}
            for name, (kind, shape, size) in self.arrays.items()
        }
        while True:
            about = {"format": FORMAT, "model": self.model, "unreadable": json.dumps(reasons)}
            content = json.dumps({"__metadata__": about, **entries}).encode()
            if len(content) <= HEADER - 8:
                return (HEADER - 8).to_bytes(8, "little") + content.ljust(HEADER - 8)
            reasons = dict(list(reasons.items())[: len(reasons) // 2])


@dataclass(frozen=True)
class Finished:
    """The rows of a file that are done."""

    layout: Layout
    values: np.ndarray
    ids: np.ndarray
    done: np.ndarray

    @staticmethod
    def read(path: Path) -> "Finished | None":
        """Returns the rows that are done, or None if there is no file."""
        if not path.exists():
            return None
        header, start = read_header(path)
        about = header.pop("__metadata__", {})
        if about.get("format") != FORMAT:
            raise DataError(f"{path} was not written by rarefish.embed(). Give another path.")
        arrays = {name: map_array(path, header, start, name) for name in ("embeddings", "ids", "done")}
        values = arrays["embeddings"]
        layout = Layout(about["model"], len(values), values.shape[1], str(values.dtype.newbyteorder("=")))
        ids = np.array(arrays["ids"]).view(IDS)[:, 0] if len(values) else np.empty(0, IDS)
        return Finished(layout, values, ids, np.array(arrays["done"]) == 1)

    def lookup(self) -> "Lookup":
        """Returns a table of the rows that are done, by id."""
        rows = np.flatnonzero(self.done & (self.ids != b""))
        ids, first = np.unique(self.ids[rows], return_index=True)
        return Lookup(ids, rows[first], self.values)


@dataclass(frozen=True)
class Lookup:
    """Vectors by id."""

    ids: np.ndarray
    """Distinct ids in ascending order."""
    rows: np.ndarray
    """The row of each id."""
    values: np.ndarray

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns the row of each id, or -1 if it is unknown."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        place = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return np.where(self.ids[place] == ids, self.rows[place], -1)


def check_same_model(path: Path, found: "Finished | None", wanted: Layout) -> None:
    """Raises an error if the file contains vectors of another model or in another precision."""
    if found is None:
        return
    way_out = "Delete the file to compute all embeddings again, or give another path."
    if found.layout.model != wanted.model:
        raise OtherModelError(
            f"{path} was computed by another model: the weights, code, layer or preprocessing have changed. {way_out}"
        )
    if (found.layout.dtype, found.layout.width) != (wanted.dtype, wanted.width):
        raise OtherModelError(
            f"{path} has {found.layout.width} channels in {found.layout.dtype}, not {wanted.width} in {wanted.dtype}. "
            f"{way_out}"
        )


@dataclass
class EmbeddingFile:
    """A file that is being filled; each process opens it and writes its own rows."""

    path: Path
    layout: Layout
    descriptor: int
    pending: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    """Rows with their ids that have been written but not yet marked as done."""
    flushed: float = field(default_factory=time.monotonic)

    @staticmethod
    def create(path: Path, layout: Layout) -> "EmbeddingFile":
        """Creates an empty file, in which all values are zero."""
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = EmbeddingFile(path, layout, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        os.pwrite(opened.descriptor, layout.header({}), 0)
        os.ftruncate(opened.descriptor, layout.starts()["end"])
        return opened

    @staticmethod
    def open(path: Path, layout: Layout) -> "EmbeddingFile":
        return EmbeddingFile(path, layout, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def write(self, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        """Writes vectors at the given rows, which must be in ascending order."""
        self.put("embeddings", rows, values.astype(self.layout.dtype))
        self.pending.append((rows, ids))
        if time.monotonic() - self.flushed > FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Marks the rows that have been written as done, once they are on disk."""
        os.fsync(self.descriptor)
        for rows, ids in self.pending:
            self.put("ids", rows, _as_bytes(ids))
            self.put("done", rows, np.ones(len(rows), np.uint8))
        self.pending.clear()
        self.flushed = time.monotonic()

    def close(self) -> None:
        os.close(self.descriptor)

    def put(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Writes one array, run by run of consecutive rows; other processes write to the same file."""
        start = self.layout.starts()[name]
        for first, last in _runs(rows):
            content = np.ascontiguousarray(values[first:last])
            size = content.nbytes // max(1, last - first)
            view, place = memoryview(content.reshape(-1).view(np.uint8).data), start + int(rows[first]) * size
            while len(view):
                written = os.pwrite(self.descriptor, view, place)
                view, place = view[written:], place + written


def _as_bytes(ids: np.ndarray) -> np.ndarray:
    return ids.astype(IDS).view(np.uint8).reshape(len(ids), ID_WIDTH)


def _runs(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields (first, last) for each run of consecutive numbers."""
    ends = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = [0, *ends.tolist(), len(rows)]
    return ((a, b) for a, b in pairwise(edges) if b > a)


def prepare(path: Path, working: Path, layout: Layout, ids: np.ndarray | None) -> None:
    """Creates the working file with all vectors that are already known, unless a killed run has left one.

    Args:
        path: The finished file, which may exist.
        working: The file to create.
        layout: The content that it will have.
        ids: The ids of all images, or None if they are known only once the images are read.
    """
    finished, left = Finished.read(path), _read_left(working)
    check_same_model(path, finished, layout)
    check_same_model(working, left, layout)
    if left is not None and left.layout == layout and (ids is None or bool((left.ids == ids)[left.done].all())):
        return
    temporary = working.with_name(f"{working.name}.new")
    opened = EmbeddingFile.create(temporary, layout)
    try:
        if ids is not None:
            opened.put("ids", np.arange(len(ids)), _as_bytes(ids))  # also those of images that cannot be read
        for known in (finished, left):
            if ids is not None and known is not None:
                _copy(known.lookup(), ids, opened)
        opened.flush()
    finally:
        opened.close()
    temporary.replace(working)


def _read_left(working: Path) -> Finished | None:
    try:
        return Finished.read(working)
    except DataError:  # killed before the header was written
        return None


def _copy(known: Lookup, ids: np.ndarray, opened: EmbeddingFile) -> None:
    """Copies the vectors with these ids block by block."""
    for first in range(0, len(ids), COPIED_AT_ONCE):
        rows = np.arange(first, min(first + COPIED_AT_ONCE, len(ids)))
        found = known.find(ids[rows])
        is_known = found >= 0
        if is_known.any():
            opened.write(rows[is_known], ids[rows][is_known], known.values[found[is_known]])
            release(known.values)


def finish(path: Path, working: Path, layout: Layout, unreadable: Mapping[int, str]) -> None:
    """Writes the reasons for unreadable images into the header and gives the file its final name."""
    with working.open("r+b") as file:
        file.write(layout.header(unreadable))
        file.flush()
        os.fsync(file.fileno())
    working.replace(path)


def to_ids(ids: Any) -> np.ndarray:
    """Returns ids as an array of bytes; raises an error if one is longer than a file can store."""
    found = np.char.encode(np.asarray(ids, dtype=str), "utf-8") if len(ids) else np.empty(0, IDS)
    if found.dtype.itemsize > ID_WIDTH:
        raise ArgumentError(f"An id has {found.dtype.itemsize} bytes, but at most {ID_WIDTH} can be stored.")
    return found.astype(IDS)
