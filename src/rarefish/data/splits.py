"""A dataset split into pool, validation set and test set."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Dataset = TypeVar("Dataset")
"""A dataset of (image, label) items, in memory or in files."""


@dataclass(frozen=True)
class Splits(Generic[Dataset]):
    """A pool, a small trusted validation set and a test set, all with (image, label) items."""

    pool: Dataset
    validation: Dataset
    test: Dataset
    num_classes: int
    rare: tuple[int, ...]
    """Classes that are rare in the pool."""

    @property
    def channels(self) -> int:
        """The number of channels of an image."""
        pool: Any = self.pool
        return pool[0][0].shape[0]
