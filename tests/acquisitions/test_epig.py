"""Expected predictive information gain against loops over classes."""

import math

import pytest
import torch

from rarefish.acquisitions.dropout import mc_dropout
from rarefish.acquisitions.epig import epig
from tests.acquisitions.situations import POOL, VALIDATION, choose, seeded, situation


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


def test_the_images_that_say_most_about_the_validation_set_are_chosen() -> None:
    here, generator = situation(), seeded()
    masks = seeded(int(torch.randint(2**62, (), generator=generator)))
    targets = sorted(torch.randperm(12, generator=generator)[:4].tolist())
    with torch.no_grad(), mc_dropout(here.model, 5, masks) as predict:
        target_TMC = predict(VALIDATION.tensors[0][targets]).softmax(dim=2)
        values = {i: float(epig(predict(POOL.tensors[0][[i]]).softmax(dim=2), target_TMC)) for i in here.unlabeled}
    assert choose("epig", here, 6).indices == sorted(values, key=lambda i: -values[i])[:6]
