"""Pool indices that are left, in the memory of those that are not: a pool may have a billion."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

AT_ONCE = 65_536
FEW = 2**24
"""Numbers that may all be shuffled to draw some."""


@dataclass(frozen=True)
class Left(Sequence[int]):
    """0, 1, 2 … without some; a slice is as small as the whole."""

    start: int
    stop: int
    gaps: np.ndarray
    """For each missing number, how many that are left come before it."""

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
        for first in range(self.start, self.stop, AT_ONCE):
            yield from self._at(np.arange(first, min(first + AT_ONCE, self.stop))).tolist()

    def _at(self, places: np.ndarray) -> np.ndarray:
        return places + np.searchsorted(self.gaps, places, side="right")


def all_but(missing: Collection[int], count: int) -> Sequence[int]:
    """The numbers from 0 to `count` - 1, in order, without some of them."""
    if not missing:
        return range(count)
    ordered = np.sort(np.fromiter(missing, dtype=np.int64, count=len(missing)))
    return Left(0, count - len(ordered), ordered - np.arange(len(ordered)))


def without(left: Sequence[int], taken: Collection[int]) -> Sequence[int]:
    """What `all_but` left, without some more."""
    if not taken:
        return left
    gaps = left.gaps if isinstance(left, Left) else np.empty(0, dtype=np.int64)
    return all_but([*(gaps + np.arange(len(gaps))).tolist(), *taken], len(left) + len(gaps))


def draw_some(count: int, among: int, generator: torch.Generator) -> Tensor:
    """Up to `count` different numbers below `among`, ascending."""
    if among <= FEW:
        return torch.randperm(among, generator=generator)[:count].sort().values
    drawn = torch.randint(among, (2 * count,), generator=generator).unique()
    return drawn[torch.randperm(len(drawn), generator=generator)[:count]].sort().values
