"""The Fisher acquisition is `select()`, with the number of passes it costs."""

from typing import Any

import pytest
import torch

from rarefish import select
from rarefish.acquisitions.fisher_kernel import monte_carlo_passes
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Posterior
from tests.acquisitions.situations import POOL, VALIDATION, choose, seeded, situation


@pytest.mark.parametrize(
    ("name", "options"),
    [("fisher", {}), ("features", {"kernel": "features"}), ("fisher_true", {"labels": "true"})],
)
def test_fisher_is_select_and_says_why(name: str, options: dict[str, Any]) -> None:
    here = situation()
    choice = choose(name, here, 5)
    chosen = select(here.model, POOL, VALIDATION, budget=5, exclude=here.labeled, generator=seeded(), **options)
    assert choice.indices == chosen.indices.tolist()
    assert choice.why is not None and torch.equal(choice.why.centers, chosen.centers)
    each = 1 if name == "features" else 2
    learning = Posterior().passes(12, 3, 27) if name == "fisher" else 0
    assert choice.passes == 12 + each * (27 + chosen.num_failures) + learning


def test_monte_carlo_labels_cost_samples_times_classes() -> None:
    assert monte_carlo_passes("density", 10) == 0
    assert monte_carlo_passes("trace", 10) == 128 * 11
    assert monte_carlo_passes(MonteCarlo(samples=4), 10) == 44
