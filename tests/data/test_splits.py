"""Splits into a pool, a validation set and a test set."""

import torch
from torch.utils.data import TensorDataset

from rarefish.data.splits import Splits


def test_channels_are_those_of_the_pool_images() -> None:
    pool, other = (TensorDataset(torch.zeros(4, channels, 6, 5), torch.zeros(4)) for channels in (3, 1))
    assert Splits(pool, other, other, num_classes=2, rare=(1,)).channels == 3
    assert Splits(other, pool, pool, num_classes=2, rare=(1,)).channels == 1
