"""What an acquisition is given and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from rarefish.reading import Data
from rarefish.selection import Selection


@dataclass(frozen=True)
class Situation:
    """Where a round begins: the model so far, and what is labeled."""

    model: nn.Module
    pool: Data
    validation: Data
    labeled: tuple[int, ...]
    """Pool indices that have a label and may not be chosen again."""

    @cached_property
    def unlabeled(self) -> list[int]:
        labeled = set(self.labeled)
        return [i for i in range(len(self.pool)) if i not in labeled]


@dataclass(frozen=True)
class Choice:
    """Pool indices to label, best first, and the reasons where the acquisition has them."""

    indices: list[int]
    why: Selection | None = None


Acquisition = Callable[[Situation, int, torch.Generator], Choice]
"""(where the round begins, how many, a source of chance) -> which images."""
