"""The Fisher acquisition is `select()`, with the number of passes it costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rarefish import select
from rarefish.acquisitions import find_acquisition
from rarefish.acquisitions.fisher_kernel import monte_carlo_passes
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Posterior
from tests.acquisitions.situations import POOL, VALIDATION, choose, seeded, situation


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fisher", {"method": "fisher"}),
        ("features", {"kernel": "features", "labels": "prediction"}),
        ("fisher_true", {"labels": "true"}),
    ],
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


def test_the_posterior_learns_from_the_labels_of_earlier_rounds() -> None:
    """As `select(labeled=...)` does; without them, or with others, it chooses other images."""
    truth = tuple(POOL.tensors[1][[3, 9, 11]].tolist())
    here = replace(situation(), labels=truth, refused=(0, 4))
    chosen = choose("fisher", here, 8).why
    assert chosen is not None
    for labels, is_same in ((truth, True), (tuple((label + 1) % 4 for label in truth), False)):
        labeled = dict(zip((3, 9, 11), labels, strict=True))
        how = {
            "method": "fisher",
            "budget": 8,
            "exclude": (0, 4),
            "labeled": labeled,
            "generator": seeded(),
            "progress": False,
        }
        other = select(here.model, POOL, VALIDATION, **how)
        assert (chosen.rows() == other.rows()) == is_same


def test_the_posterior_times_the_kernel_of_features_is_a_configured_fisher() -> None:
    here = situation()
    choice = find_acquisition("fisher", kernel="features")(here, 5, seeded())
    alone = choose("features", here, 5)
    assert choice.why is not None and choice.why.pool_mix is not None
    assert alone.why is not None and alone.why.pool_mix is None
    assert choice.passes - Posterior().passes(12, 3, 27) == 12 + 27 + choice.why.num_failures == alone.passes


def test_monte_carlo_labels_cost_samples_times_classes() -> None:
    assert monte_carlo_passes("density", 10) == 0
    assert monte_carlo_passes("trace", 10) == 128 * 11
    assert monte_carlo_passes(MonteCarlo(samples=4), 10) == 44
