"""Random choices are uniform over the unlabeled images."""

import torch

from tests.acquisitions.situations import choose, situation


def test_random_is_fair() -> None:
    counts = torch.zeros(30)
    for seed in range(600):
        counts[choose("random", situation(), 5, seed).indices] += 1
    assert counts[[3, 9, 11]].sum() == 0
    expected = 600 * 5 / 27
    chi_squared = float(((counts[counts > 0] - expected) ** 2 / expected).sum())
    assert chi_squared < 55  # 26 degrees of freedom: 0.1 % of fair draws are above 54
