"""The images of a workspace as a dataset, decoded on access; files that have changed since indexing cause errors."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from rarefish.data.hashing import digest, digest_files
from rarefish.data.image_files import decode, scale
from rarefish.data.reader import Reader
from rarefish.errors import DataError
from rarefish.models.preprocessing import Input
from rarefish.workspace.indexed_files import read_indexed
from rarefish.workspace.indexing import show
from rarefish.workspace.store import Store

MOST_BYTES_IN_MEMORY = 1_000_000_000
"""Larger datasets are decoded on every access instead of being kept in memory."""


@dataclass(frozen=True)
class Stamp:
    """Size, modification time and hash of a file when it was indexed."""

    bytes: int
    modified: int
    hash: str


@dataclass(frozen=True)
class WorkspaceImages:
    """A dataset whose items are (image, class); unknown classes are -1."""

    ids: tuple[int, ...]
    """The ids of the images in the workspace."""
    files: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    labels: tuple[int, ...]
    wanted: Input

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def targets(self) -> list[int]:
        """The class of each image; torchvision's datasets use the same name."""
        return list(self.labels)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files in printable form."""
        return tuple(show(os.fsencode(path)) for path in self.files)

    def fingerprints(self, *, with_contents: bool = False) -> dict[str, str]:
        """Returns hashes that identify the dataset, by name of the property."""
        return {
            "files": digest_files(self.files, with_contents=with_contents),
            "index": digest([self.ids, self.stamps]),
            "labels": digest([self.labels]),
            "preprocessing": digest([self.wanted]),
        }

    def content_ids(self, rows: Sequence[int]) -> list[str]:
        """Returns the hash of each file's content when it was indexed."""
        return [self.stamps[row].hash for row in rows]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._decode(index)
        return scale(image, self.wanted.mean, self.wanted.std), self.labels[index]

    def _decode(self, index: int) -> Tensor:
        path, stamp = self.files[index], self.stamps[index]
        name = show(os.fsencode(path))
        try:
            content = read_indexed(path, stamp.bytes, stamp.hash)
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}.") from error
        if content is None:
            raise DataError(f"{name} is not the file that was indexed.")
        return decode(BytesIO(content), self.wanted.size, self.wanted.mode, name)


def load_into_memory(data: WorkspaceImages, reader: Reader) -> "tuple[WorkspaceImages | TensorDataset, dict[int, str]]":
    """Returns the images decoded into memory, unless there are too many, and the unreadable ones with the reason."""
    image_bytes = data.wanted.channels * data.wanted.size[0] * data.wanted.size[1] * 4
    if image_bytes * len(data) > MOST_BYTES_IN_MEMORY:
        return data, {}
    unreadable: dict[int, str] = {}
    batches = list(reader.read(data, title="reading images", labels=True, unreadable=unreadable))
    if not batches:
        raise DataError(f"None of the {len(data)} images can be read, such as {next(iter(unreadable.values()), '')}")
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return TensorDataset(torch.cat([batch.images for batch in batches]), torch.cat(labels)), unreadable


def open_images(store: Store, part: str, wanted: Input, labels: Mapping[int, int] | None = None) -> WorkspaceImages:
    """Returns the usable images of "pool" or "validation"; with `labels` (image id -> class), only the labeled ones."""
    root = Path(store.settings()[f"{part}_root"])
    with store.reading() as connection:
        rows = connection.execute(
            "SELECT * FROM image WHERE part = ? AND state = 'ready' ORDER BY id", (part,)
        ).fetchall()
    rows = [row for row in rows if labels is None or row["id"] in labels]
    known = {row["id"]: row["class"] for row in rows} if labels is None else labels
    return WorkspaceImages(
        tuple(row["id"] for row in rows),
        tuple(root / os.fsdecode(row["path"]) for row in rows),
        tuple(Stamp(row["bytes"], row["modified"], row["hash"]) for row in rows),
        tuple(-1 if known[row["id"]] is None else known[row["id"]] for row in rows),
        wanted,
    )
