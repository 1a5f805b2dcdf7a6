"""A data set cut for active learning."""

from dataclasses import dataclass

from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class Splits:
    """A pool to choose from, a small trusted validation set and a test set, all of (image, label)."""

    pool: TensorDataset
    validation: TensorDataset
    test: TensorDataset
    num_classes: int
    rare: tuple[int, ...]
    """Classes that the pool hardly has."""

    @property
    def channels(self) -> int:
        """Of an image."""
        return self.pool.tensors[0].shape[1]
