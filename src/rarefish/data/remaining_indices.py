"""Sequences of remaining pool indices that store only the missing ones, since a pool may have a billion images."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

CHUNK = 65_536
MAX_PERMUTED = 2**24
"""Largest range that is shuffled as a whole for sampling."""


@dataclass(frozen=True)
class Left(Sequence[int]):
    """The sequence 0, 1, 2 … without some numbers. A slice takes no more memory than the whole sequence."""

    start: int
    stop: int
    gaps: np.ndarray
    """For each missing number, how many remaining numbers precede it."""

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> "Sequence[int]": ...

    def __getitem__(self, index: int | slice) -> "int | Sequence[int]":
        places = range(self.start, self.stop)[index]
        if isinstance(places, int):
            return int(self._at(np.array([places]))[0])
        if places.step == 1:
            return Left(places.start, max(places.start, places.stop), self.gaps)
        return [self[place - self.start] for place in places]

    def __iter__(self) -> Iterator[int]:
        for first in range(self.start, self.stop, CHUNK):
            yield from self._at(np.arange(first, min(first + CHUNK, self.stop))).tolist()

    def _at(self, places: np.ndarray) -> np.ndarray:
        return places + np.searchsorted(self.gaps, places, side="right")


def all_but(missing: Collection[int], count: int) -> Sequence[int]:
    """Returns the numbers from 0 to `count` - 1 in order, except the missing ones."""
    if not missing:
        return range(count)
    ordered = np.sort(np.fromiter(missing, dtype=np.int64, count=len(missing)))
    return Left(0, count - len(ordered), ordered - np.arange(len(ordered)))


def without(left: Sequence[int], taken: Collection[int]) -> Sequence[int]:
    """Returns the result of `all_but` without the taken numbers."""
    if not taken:
        return left
    gaps = left.gaps if isinstance(left, Left) else np.empty(0, dtype=np.int64)
    return all_but([*(gaps + np.arange(len(gaps))).tolist(), *taken], len(left) + len(gaps))


def draw_some(count: int, among: int, generator: torch.Generator) -> Tensor:
    """Returns up to `count` distinct random numbers below `among`, in ascending order."""
    if among <= MAX_PERMUTED:
        return torch.randperm(among, generator=generator)[:count].sort().values
    drawn = torch.randint(among, (2 * count,), generator=generator).unique()
    return drawn[torch.randperm(len(drawn), generator=generator)[:count]].sort().values
