"""Executors match the shards of a pool: in one process here, in several processes in `torchrun`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from rarefish.kernels import Standardized
from rarefish.matching import Matches
from rarefish.pseudo_labels.rules import Estimator
from rarefish.pseudo_labels.target_weights import TargetWeights

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to search for in the pool, as learned from the validation set."""

    centers: Standardized
    index: Int[Tensor, " K"]
    """Validation index of each center."""
    classes: Int[Tensor, " K"]
    """The label with which each center was described."""
    predictions: Int[Tensor, " K"]
    """The model's prediction for each center."""
    estimate: Estimator
    num_failures: int
    notes: tuple[str, ...]
    pool_mix: Float[Tensor, " C"] | None = None
    """Proportion of each class in the pool, if the label rule estimated it."""
    pool_mix_interval: Float[Tensor, "2 C"] | None = None
    """Lower and upper bounds of a probable range of the pool's class proportions."""


@dataclass(frozen=True)
class CoveragePlan:
    """What to cover in the pool, as learned from the validation set."""

    weights: TargetWeights
    mean: Float[Tensor, " D"]
    """Mean of the features of the pool."""
    scale: Float[Tensor, " D"]
    """Standard deviation of the features of the pool."""
    known: Float[Tensor, "L D"]
    """Directions of the images on which the model is trained."""
    failures: Float[Tensor, "K D"]
    """Directions of the validation images that the model gets wrong."""
    index: Int[Tensor, " K"]
    """Validation index of each failure."""
    classes: Int[Tensor, " K"]
    predictions: Int[Tensor, " K"]
    num_failures: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ShardMatches:
    """The best images of the pool or a part of it."""

    matches: Matches
    unreadable: dict[int, str]
    """Images that were left out, with the reasons."""


ShardMatcher = Callable[[Sequence[int], int], ShardMatches]
"""Function that maps (pool indices, depth of the table) to the best of these images."""


@runtime_checkable
class Executor(Protocol):
    """Runs the parts of `select()` in one or several processes, which all call the same methods in the same order."""

    @property
    def size(self) -> int:
        """The number of processes."""
        ...

    def everywhere(self, work: Callable[[], T]) -> T:
        """Runs `work` in every process and returns its result; an error in one process is raised in all."""
        ...

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "Executor":
        """Returns the executor for a run with these inputs (name -> hash); raises an error if the processes differ."""
        ...

    def once(self, work: Callable[[], T]) -> T:
        """Runs `work` in one process and returns its result in all."""
        ...

    def agree(self, value: T) -> T:
        """Returns the value of the first process in all processes, because their rounding may differ."""
        ...

    def map_shards(self, match: ShardMatcher, index: Sequence[int], depth: int) -> ShardMatches:
        """Returns the merged matches of all shards of the images at `index`, the same for any number of shards."""
        ...

    def map_parts(self, work: Callable[[Sequence[int]], T], index: Sequence[int]) -> list[T]:
        """Runs `work` on one part of `index` in each process and returns the results of all parts, in order."""
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

    def map_parts(self, work: Callable[[Sequence[int]], T], index: Sequence[int]) -> list[T]:
        return [work(index)]
