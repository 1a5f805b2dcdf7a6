"""A data set cut for active learning."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Held = TypeVar("Held")
"""A data set of (image, label): tensors, bytes or files."""


@dataclass(frozen=True)
class Splits(Generic[Held]):
    """A pool to choose from, a small trusted validation set and a test set, all of (image, label)."""

    pool: Held
    validation: Held
    test: Held
    num_classes: int
    rare: tuple[int, ...]
    """Classes that the pool hardly has."""

    @property
    def channels(self) -> int:
        """Of an image."""
        pool: Any = self.pool
        return pool[0][0].shape[0]
