"""Rows of descriptors: taken out and put together."""

import torch

from rarefish.descriptors import concatenate
from tests.test_kernels import random_descriptors


def test_parts_put_together_are_the_whole() -> None:
    whole = random_descriptors(7)
    again = concatenate([whole[:3], whole[3:4], whole[torch.tensor([4, 5, 6])]])
    assert torch.equal(again.scores, whole.scores) and again.widths == whole.widths and len(again) == 7


def test_a_mask_keeps_rows() -> None:
    whole = random_descriptors(5)
    assert whole[whole.index % 2 == 0].index.tolist() == [0, 2, 4]
