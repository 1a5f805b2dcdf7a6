"""What an acquisition is given and what it gives back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from rarefish.data.reader import Data, Reader
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.selection import Selection

Oracle = Callable[[Sequence[int]], list[int | None]]
"""Pool indices -> their labels; None: no answer, so the image stays unlabeled and is not asked for again."""


@dataclass(frozen=True)
class Situation:
    """Where a round begins: the models so far, and what is labeled."""

    models: tuple[nn.Module, ...]
    """One, or the members of an ensemble."""
    pool: Data
    validation: Data
    labeled: tuple[int, ...]
    """Pool indices that have a label and may not be chosen again."""
    refused: tuple[int, ...] = ()
    """Pool indices the oracle would not answer for: not chosen again either."""
    batch_size: int = 1000
    labels: tuple[int, ...] = ()
    """Of `labeled`, in its order."""
    ask: Oracle | None = None
    """For acquisitions that learn from each answer within a round; they ask for nothing that they do not choose."""
    executor: Executor = field(default_factory=SingleProcess)
    """Who shares the work of choosing."""
    workers: int = 0
    """Processes that read ahead where images are in files."""
    precision: str = "float32"
    """In which the models run: or `bfloat16`, where that is safe."""

    @property
    def model(self) -> nn.Module:
        return self.models[0]

    @property
    def reader(self) -> Reader:
        return Reader(batch_size=self.batch_size, num_workers=self.workers, progress=False)

    @cached_property
    def unlabeled(self) -> list[int]:
        taken = {*self.labeled, *self.refused}
        return [i for i in range(len(self.pool)) if i not in taken]


@dataclass(frozen=True)
class Choice:
    """Pool indices to label, best first, and what it took to find them."""

    indices: list[int]
    passes: int = 0
    """How often an image went through the model, forward or backward."""
    why: Selection | None = None
    """The reasons, where the acquisition has them."""


Acquisition = Callable[[Situation, int, torch.Generator], Choice]
"""(where the round begins, how many, a source of chance) -> which images."""


def take_largest(
    situation: Situation, values: torch.Tensor, budget: int, generator: torch.Generator, passes: int
) -> Choice:
    """The unlabeled images with the largest values, which come in the order of `unlabeled`; ties by chance."""
    shuffled = torch.randperm(len(values), generator=generator)
    rows = shuffled[values.cpu()[shuffled].argsort(descending=True, stable=True)][:budget]
    return Choice([situation.unlabeled[row] for row in rows.tolist()], passes)
