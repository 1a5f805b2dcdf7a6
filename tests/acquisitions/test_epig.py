"""Expected predictive information gain against loops over classes."""

import math

import pytest
import torch

from rarefish.acquisitions.epig import epig
from tests.acquisitions.situations import seeded


def test_epig_equals_loops_and_is_zero_for_independent_predictions() -> None:
    pool, targets = (torch.randn(7, n, 3, generator=seeded(n), dtype=torch.float64).softmax(dim=2) for n in (4, 5))
    for n, fast in enumerate(epig(pool, targets).tolist()):
        slow = 0.0
        for m in range(5):
            for y in range(3):
                for z in range(3):
                    both = sum(float(pool[t, n, y] * targets[t, m, z]) for t in range(7)) / 7
                    alone = float(pool[:, n, y].mean() * targets[:, m, z].mean())
                    slow += both * math.log(both / alone) / 5
        assert fast == pytest.approx(slow)
    assert epig(pool[:1].expand(7, -1, -1), targets).abs().max() < 1e-9
