"""The handwritten digits bundled with the package: a small, biased subset of MNIST (see digits.LICENSE.md)."""

from importlib.resources import files

import numpy as np
from torch.utils.data import TensorDataset

from rarefish.data.arrays import Arrays
from rarefish.data.splits import Splits

MEAN, DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's pixels, on a scale of 0 to 1."""


def load_digits() -> Splits[TensorDataset]:
    """Returns the bundled digits as normalized tensors.

    The pool has 6,000 common digits 0-4 and 60 rare digits 5-9; the validation set (500) and the test set (2,000) have
    the same number of each digit.

    >>> splits = load_digits()
    >>> len(splits.pool), len(splits.validation), len(splits.test)
    (6060, 500, 2000)
    """
    pool, validation, test = (_normalized(part) for part in read_digits())
    return Splits(pool, validation, test, num_classes=10, rare=(5, 6, 7, 8, 9))


def read_digits() -> list[Arrays]:
    """Returns the pool, validation set and test set as bytes."""
    with (files("rarefish.data") / "digits.npz").open("rb") as file, np.load(file) as content:
        parts = ("pool", "validation", "test")
        return [Arrays(content[f"{name}_images"][..., None], content[f"{name}_labels"]) for name in parts]


def _normalized(part: Arrays) -> TensorDataset:
    images, labels = part.to_tensors().tensors
    return TensorDataset((images - MEAN) / DEVIATION, labels)
