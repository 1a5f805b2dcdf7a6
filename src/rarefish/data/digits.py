"""Handwritten digits that come with the package: a small, biased cut of MNIST (see digits.LICENSE.md)."""

from importlib.resources import files

import numpy as np
from torch.utils.data import TensorDataset

from rarefish.data.arrays import Arrays
from rarefish.data.splits import Splits

MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's pixels, from 0 to 1."""


def load_digits() -> Splits[TensorDataset]:
    """6,000 common digits 0-4 and 60 rare ones 5-9 in the pool; 500 and 2,000 of all ten, evenly, to validate and test.

    >>> splits = load_digits()
    >>> len(splits.pool), len(splits.validation), len(splits.test)
    (6060, 500, 2000)
    """
    pool, validation, test = (_normalized(part) for part in read_digits())
    return Splits(pool, validation, test, num_classes=10, rare=(5, 6, 7, 8, 9))


def read_digits() -> list[Arrays]:
    """Pool, validation set and test set as they lie in the package."""
    with (files("rarefish.data") / "digits.npz").open("rb") as file, np.load(file) as content:
        parts = ("pool", "validation", "test")
        return [Arrays(content[f"{name}_images"][..., None], content[f"{name}_labels"]) for name in parts]


def _normalized(part: Arrays) -> TensorDataset:
    images, labels = part.to_tensors().tensors
    return TensorDataset((images - MEAN) / DEVIATION, labels)
