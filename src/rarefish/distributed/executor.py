"""Executors: how the shards of a pool are matched, by one process here, by several in `torchrun`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from rarefish.kernels import Standardized
from rarefish.matching import Matches
from rarefish.pseudo_labels.rules import Estimator

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to look for in the pool, learned from the validation set."""

    centers: Standardized
    index: Int[Tensor, " K"]
    """Validation index of each center."""
    classes: Int[Tensor, " K"]
    """The label that each center was described with."""
    predictions: Int[Tensor, " K"]
    """The model's answer for each center."""
    estimate: Estimator
    num_failures: int
    notes: tuple[str, ...]
    pool_mix: Float[Tensor, " C"] | None = None
    """Share of each class in the pool, if the label rule estimated it."""


@dataclass(frozen=True)
class ShardMatches:
    """The best images of a part of the pool, or of all of it."""

    matches: Matches
    unreadable: dict[int, str]
    """Images that were left out, and why."""


ShardMatcher = Callable[[Sequence[int], int], ShardMatches]
"""(pool indices, depth of the table) -> the best of these images."""


@runtime_checkable
class Executor(Protocol):
    """Runs the parts of `select()` in one or several processes; each calls the same methods in the same order."""

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def everywhere(self, work: Callable[[], T]) -> T:
        """Runs `work` in every process and returns its result; an error in one of them is raised in all."""
        ...

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "Executor":
        """The executor for a run with these inputs (name -> hash); raises an error where processes have others."""
        ...

    def once(self, work: Callable[[], T]) -> T:
        """Runs `work` in one process and returns its result in all."""
        ...

    def agree(self, value: T) -> T:
        """Returns the first process's value in all: rounding, and what follows from it, may differ."""
        ...

    def map_shards(self, match: ShardMatcher, index: Sequence[int], depth: int) -> ShardMatches:
        """Matches each shard of the images at `index` and merges the tables; the same for any number of shards."""
        ...


class SingleProcess:
    """The executor of one process, which matches the pool as one shard."""

    size = 1

    def everywhere(self, work: Callable[[], T]) -> T:
        return work()

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "SingleProcess":
        return self

    def once(self, work: Callable[[], T]) -> T:
        return work()

    def agree(self, value: T) -> T:
        return value

    def map_shards(self, match: ShardMatcher, index: Sequence[int], depth: int) -> ShardMatches:
        return match(index, depth)
