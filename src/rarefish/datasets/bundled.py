"""Handwritten digits that come with the package: a small, biased cut of MNIST (see digits.LICENSE.md)."""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch.utils.data import TensorDataset

MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's pixels, from 0 to 1."""


@dataclass(frozen=True)
class Splits:
    """A pool to choose from, a small trusted validation set and a test set, all of (image, label)."""

    pool: TensorDataset
    validation: TensorDataset
    test: TensorDataset
    num_classes: int
    rare: tuple[int, ...]
    """Classes that the pool hardly has."""


def load_digits() -> Splits:
    """6,000 common digits 0-4 and 60 rare ones 5-9 in the pool; 500 and 2,000 of all ten, evenly, to validate and test.

    >>> splits = load_digits()
    >>> len(splits.pool), len(splits.validation), len(splits.test)
    (6060, 500, 2000)
    """
    with (files("rarefish.datasets") / "digits.npz").open("rb") as file, np.load(file) as arrays:
        pool, validation, test = (_to_tensors(arrays, name) for name in ("pool", "validation", "test"))
    return Splits(pool, validation, test, num_classes=10, rare=(5, 6, 7, 8, 9))


def _to_tensors(arrays: np.lib.npyio.NpzFile, name: str) -> TensorDataset:
    images = torch.from_numpy(arrays[f"{name}_images"]).float()[:, None] / 255
    return TensorDataset((images - MEAN) / DEVIATION, torch.from_numpy(arrays[f"{name}_labels"]).long())
