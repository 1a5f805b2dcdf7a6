"""Who does the work of a selection: one process alone, or several together (`distributed`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from rarefish.kernels import Standardized
from rarefish.matching import Matches
from rarefish.pseudo_labels.rules import Estimator

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to look for in the pool."""

    centers: Standardized
    index: Int[Tensor, " K"]
    """Validation index of each center."""
    classes: Int[Tensor, " K"]
    estimate: Estimator
    num_failures: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Scored:
    """What was found in some part of the pool."""

    matches: Matches
    unreadable: dict[int, str]
    """Images that were left out, and why."""


Score = Callable[[Sequence[int], int], Scored]
"""(pool indices, depth) -> what is found there."""


@runtime_checkable
class Executor(Protocol):
    """Shares out what `select()` does; every member calls the same methods in the same order."""

    @property
    def size(self) -> int:
        """How many members."""
        ...

    def everywhere(self, work: Callable[[], T]) -> T:
        """What the work gives, done by every member; where it fails for one, all stop with that error."""
        ...

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "Executor":
        """The team for one run with these inputs (name -> hash); members with others stop before any work."""
        ...

    def once(self, work: Callable[[], T]) -> T:
        """What the work gives; one member does it for all."""
        ...

    def agree(self, value: T) -> T:
        """What the first member has, for all: where rounding differs, so might what follows from it."""
        ...

    def score(self, score: Score, left: Sequence[int], depth: int) -> Scored:
        """What is found in the whole pool, whoever looked at which part."""
        ...


class SingleProcess:
    """One process."""

    size = 1

    def everywhere(self, work: Callable[[], T]) -> T:
        return work()

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "SingleProcess":
        return self

    def once(self, work: Callable[[], T]) -> T:
        return work()

    def agree(self, value: T) -> T:
        return value

    def score(self, score: Score, left: Sequence[int], depth: int) -> Scored:
        return score(left, depth)
