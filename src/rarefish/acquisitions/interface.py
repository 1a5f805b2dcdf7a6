"""The input and the output of an acquisition: `Situation` and `Choice`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from rarefish.data.reader import Data, Reader
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.selection import Selection

Oracle = Callable[[Sequence[int]], list[int | None]]
"""Function that maps pool indices to labels. None means no answer: the image stays unlabeled and is not asked about
again."""


@dataclass(frozen=True)
class Situation:
    """What an acquisition knows: the current models, the datasets and the labels so far.

    The active learning loop turns the situation at the start of each round into that at the start of the next.
    """

    models: tuple[nn.Module, ...] = field(repr=False)
    """One model, or the members of an ensemble."""
    pool: Data
    validation: Data
    labeled: tuple[int, ...] = ()
    """Pool indices that have a label and must not be chosen again."""
    refused: tuple[int, ...] = ()
    """Pool indices without an answer from the oracle; they must not be chosen again either."""
    batch_size: int = 1000
    labels: tuple[int, ...] = ()
    """The labels of `labeled`, in the same order."""
    ask: Oracle | None = None
    """The oracle, for acquisitions that use each answer within a round. They ask only about images that they choose."""
    executor: Executor = field(default_factory=SingleProcess)
    """The executor that distributes the selection over processes."""
    workers: int = 0
    """Number of worker processes that load images from files."""
    precision: str = "float32"
    """Precision of the forward passes: `float32`, or `bfloat16` where that is safe."""
    finished_rounds: int = 0
    """Number of rounds before this one."""
    trained_on_validation: bool = False
    """Whether the models have been trained on the validation set as well as on the labeled images."""

    @property
    def model(self) -> nn.Module:
        return self.models[0]

    @property
    def is_trained(self) -> bool:
        """Whether the models have been trained on any labels."""
        return bool(self.labeled) or self.trained_on_validation

    @property
    def reader(self) -> Reader:
        return Reader(batch_size=self.batch_size, num_workers=self.workers, progress=False)

    @cached_property
    def unlabeled(self) -> list[int]:
        taken = {*self.labeled, *self.refused}
        return [i for i in range(len(self.pool)) if i not in taken]


@dataclass(frozen=True)
class Choice:
    """The pool indices to label, best first, and the cost of choosing them."""

    indices: list[int]
    passes: int = 0
    """Number of forward and backward passes, counted per image."""
    why: Selection | None = None
    """The selection with its centers and matches, if the acquisition makes one."""


Acquisition = Callable[[Situation, int, torch.Generator], Choice]
"""Function that maps (situation, budget, generator) to a choice of `budget` images."""


def take_largest(
    situation: Situation, values: torch.Tensor, budget: int, generator: torch.Generator, passes: int
) -> Choice:
    """Returns the unlabeled images with the largest values; ties are broken at random.

    `values` are in the order of `situation.unlabeled`.
    """
    shuffled = torch.randperm(len(values), generator=generator)
    rows = shuffled[values.cpu()[shuffled].argsort(descending=True, stable=True)][:budget]
    return Choice([situation.unlabeled[row] for row in rows.tolist()], passes)
