"""Images of a workspace as a data set: decoded when asked for, refused where the file is no longer the one indexed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from rarefish.data.image_files import decode, scale
from rarefish.data.reader import Reader
from rarefish.errors import DataError
from rarefish.hashing import digest, digest_files
from rarefish.models.preprocessing import Input
from rarefish.workspace.indexed_files import read_indexed
from rarefish.workspace.indexing import show
from rarefish.workspace.store import Store

MOST_HELD = 1_000_000_000
"""Bytes of decoded images that may be held in memory."""


@dataclass(frozen=True)
class Stamp:
    """By which a file is known to be the one indexed."""

    bytes: int
    modified: int
    hash: str


@dataclass(frozen=True)
class Shelf:
    """Item i is (image, class), with -1 where the class is not known."""

    ids: tuple[int, ...]
    """Of the store."""
    files: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    labels: tuple[int, ...]
    wanted: Input

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def targets(self) -> list[int]:
        return list(self.labels)

    @property
    def paths(self) -> tuple[str, ...]:
        """Names that can be printed."""
        return tuple(show(os.fsencode(path)) for path in self.files)

    def fingerprints(self, *, with_contents: bool = False) -> dict[str, str]:
        """Hashes by which the data set is known to be the same, by name."""
        return {
            "files": digest_files(self.files, with_contents=with_contents),
            "index": digest([self.ids, self.stamps]),
            "labels": digest([self.labels]),
            "preprocessing": digest([self.wanted]),
        }

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._picture(index)
        return scale(image, self.wanted.mean, self.wanted.std), self.labels[index]

    def _picture(self, index: int) -> Tensor:
        path, stamp = self.files[index], self.stamps[index]
        name = show(os.fsencode(path))
        try:
            content = read_indexed(path, stamp.bytes, stamp.hash)
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}.") from error
        if content is None:
            raise DataError(f"{name} is not the file that was indexed.")
        return decode(BytesIO(content), self.wanted.size, self.wanted.mode, name)


def hold(shelf: Shelf, reader: Reader) -> "tuple[Shelf | TensorDataset, dict[int, str]]":
    """The same images decoded once and held in memory, where they are few; and what cannot be read, left out."""
    one = shelf.wanted.channels * shelf.wanted.size[0] * shelf.wanted.size[1] * 4
    if one * len(shelf) > MOST_HELD:
        return shelf, {}
    unreadable: dict[int, str] = {}
    batches = list(reader.read(shelf, title="reading images", labels=True, unreadable=unreadable))
    if not batches:
        raise DataError(f"None of {len(shelf)} images can be read, such as {next(iter(unreadable.values()), '')}")
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return TensorDataset(torch.cat([batch.images for batch in batches]), torch.cat(labels)), unreadable


def shelve(store: Store, part: str, wanted: Input, labels: Mapping[int, int] | None = None) -> Shelf:
    """All images of that part that can be used or, with labels (image -> class), those alone."""
    root = Path(store.settings()[f"{part}_root"])
    with store.reading() as connection:
        rows = connection.execute(
            "SELECT * FROM image WHERE part = ? AND state = 'ready' ORDER BY id", (part,)
        ).fetchall()
    rows = [row for row in rows if labels is None or row["id"] in labels]
    known = {row["id"]: row["class"] for row in rows} if labels is None else labels
    return Shelf(
        tuple(row["id"] for row in rows),
        tuple(root / os.fsdecode(row["path"]) for row in rows),
        tuple(Stamp(row["bytes"], row["modified"], row["hash"]) for row in rows),
        tuple(-1 if known[row["id"]] is None else known[row["id"]] for row in rows),
        wanted,
    )
