"""Near-copies among a workspace's images, found by their embeddings and kept in its folder."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from warnings import warn

import numpy as np
import torch

from rarefish.data.file_listing import show
from rarefish.data.hashing import digest
from rarefish.data.near_copies import THRESHOLD, group_pairs, near_copy_pairs
from rarefish.embedding.embedding_file import Finished
from rarefish.errors import DataError
from rarefish.io import write_whole
from rarefish.workspace.embeddings import FOLDER, PARTS, embedding_file, is_embedded
from rarefish.workspace.store import Store

FILE = "near_copies.json"
SHOWN = 3
"""Number of groups that are named in a report."""


@dataclass(frozen=True)
class Copy:
    """An image that has near-copies."""

    image: int
    part: str
    path: bytes


@dataclass(frozen=True)
class NearCopies:
    """The near-copies among the images that have an embedding."""

    images: tuple[Copy, ...]
    """All images with an embedding, trusted ones first."""
    pairs: tuple[tuple[int, int], ...]
    """Pairs of positions in `images`, in ascending order."""

    def groups(self) -> list[list[Copy]]:
        """Returns the groups of images that are linked by pairs."""
        pairs = torch.tensor(self.pairs, dtype=torch.long).reshape(-1, 2)
        return [[self.images[row] for row in group] for group in group_pairs(pairs)]

    def superfluous(self, picked: Iterable[int]) -> set[int]:
        """Returns pool images that need no label: near-copies of picked or trusted images, or of an earlier one."""
        known = set(picked)
        kept = {row for row, one in enumerate(self.images) if one.part == "validation" or one.image in known}
        neighbors: dict[int, list[int]] = {}
        for first, second in self.pairs:
            neighbors.setdefault(first, []).append(second)
            neighbors.setdefault(second, []).append(first)
        found = set[int]()
        for row in sorted(neighbors.keys() - kept):
            if kept.isdisjoint(neighbors[row]):
                kept.add(row)
            else:
                found.add(self.images[row].image)
        return found


NONE = NearCopies((), ())


def find_near_copies(store: Store) -> NearCopies:
    """Returns the near-copies among all images that have an embedding; none before the first embedding.

    They are computed again only if the embeddings or the index have changed.
    """
    if not is_embedded(store):
        return NONE
    with store.reading() as connection:
        rows = connection.execute(
            "SELECT id, part, path, hash FROM image WHERE state = 'ready' ORDER BY part DESC, id"
        ).fetchall()
    embedded = [_read(embedding_file(store, part)) for part in PARTS]
    position = {name: (number, row) for number, one in enumerate(embedded) for row, name in _done(one)}
    used = [row for row in rows if row["hash"].encode() in position]
    images = tuple(Copy(row["id"], row["part"], bytes(row["path"])) for row in used)
    key = digest([THRESHOLD, *(one.layout.model for one in embedded), *(row["hash"] for row in used)])
    place = store.folder / FOLDER / FILE
    pairs = _kept(place, key)
    if pairs is None:
        pairs = _compute(embedded, [position[row["hash"].encode()] for row in used])
        if os.access(place.parent, os.W_OK):
            write_whole(place, json.dumps({"key": key, "pairs": pairs}))
    return NearCopies(images, tuple((first, second) for first, second in pairs))


def _read(file: Path) -> Finished:
    found = Finished.read(file)
    assert found is not None
    return found


def _done(embedded: Finished) -> Iterator[tuple[int, bytes]]:
    """Yields the row and the content hash of each image."""
    for row in np.flatnonzero(embedded.done).tolist():
        yield row, bytes(embedded.ids[row])


def _kept(place: Path, key: str) -> list[list[int]] | None:
    """Returns the pairs that were found before in the same embeddings."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found["pairs"] if isinstance(found, dict) and found.get("key") == key else None


def _compute(embedded: Sequence[Finished], places: Sequence[tuple[int, int]]) -> list[list[int]]:
    values = np.empty((len(places), embedded[0].layout.width), np.float32)
    for number, one in enumerate(embedded):
        targets = [at for at, (own, _) in enumerate(places) if own == number]
        values[targets] = one.values[[places[at][1] for at in targets]]
    try:
        return near_copy_pairs(values).tolist()
    except DataError as error:
        warn(f"Near-copies were not looked for: {error}", stacklevel=2)
        return []


def copy_lines(groups: list[list[Copy]]) -> list[str]:
    """Returns a line about near-copies in the pool, and one about those of validation images, if there are any."""
    in_pool = [pool for group in groups if len(pool := [one for one in group if one.part == "pool"]) > 1]
    leaks = [group for group in groups if len({one.part for one in group}) > 1]
    lines = []
    if in_pool:
        count = sum(map(len, in_pool))
        lines.append(f"  {count:,} pool images are near-copies of each other ({_some(in_pool)})")
    if leaks:
        count = sum(one.part == "pool" for group in leaks for one in group)
        lines.append(f"  {count:,} pool images are near-copies of validation images ({_some(leaks)})")
    return lines


def _some(groups: list[list[Copy]]) -> str:
    """Returns the number of groups and the first two names in each of the first few."""
    named = [" and ".join(f"{one.part}/{show(one.path)}" for one in (group[0], group[-1])) for group in groups[:SHOWN]]
    more = "; …" if len(groups) > SHOWN else ""
    return f"{len(groups):,} group{'s' if len(groups) > 1 else ''}: {'; '.join(named)}{more}"
