"""Acquisition functions: one signature and a table of their names."""

from collections.abc import Callable
from functools import partial
from typing import Any

from rarefish.acquisitions.class_balance import choose_by_quota, choose_similar
from rarefish.acquisitions.direct import choose_direct
from rarefish.acquisitions.diversity import choose_badge, choose_core_set
from rarefish.acquisitions.epig import choose_epig
from rarefish.acquisitions.fisher_kernel import choose_fisher
from rarefish.acquisitions.galaxy import choose_galaxy
from rarefish.acquisitions.interface import Acquisition, Choice, Situation
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.acquisitions.typiclust import choose_typical
from rarefish.acquisitions.uncertainty import choose_uncertain
from rarefish.acquisitions.vaal import choose_vaal
from rarefish.errors import ArgumentError, nearest

ACQUISITIONS: dict[str, Callable[..., Choice]] = {
    "random": choose_random,
    "least_confidence": partial(choose_uncertain, statistic="least_confidence"),
    "margin": partial(choose_uncertain, statistic="margin"),
    "entropy": partial(choose_uncertain, statistic="entropy"),
    "variation_ratio": partial(choose_uncertain, statistic="variation_ratio", samples=128),
    "bald": partial(choose_uncertain, statistic="bald", samples=128),
    "mean_std": partial(choose_uncertain, statistic="mean_std", samples=128),
    "core_set": choose_core_set,
    "badge": choose_badge,
    "vaal": choose_vaal,
    "balanced_entropy": partial(choose_by_quota, counting_labels=False),
    "tail_first": partial(choose_by_quota, counting_labels=True),
    "similar": choose_similar,
    "epig": choose_epig,
    "typiclust": choose_typical,
    "galaxy": choose_galaxy,
    "direct": choose_direct,
    "features": partial(choose_fisher, kernel="features"),
    "fisher": choose_fisher,
    "fisher_true": partial(choose_fisher, labels="true"),
}
"""Each takes (situation, budget, generator) and its own settings as keyword arguments.

`fisher_true` uses the true labels of the pool: an upper bound of the method, for experiments only.
"""

__all__ = ["ACQUISITIONS", "Acquisition", "Choice", "Situation", "find_acquisition"]


def find_acquisition(name: str, **settings: Any) -> Acquisition:
    """Returns the acquisition of that name, with its own settings bound, such as samples= or labels=."""
    if name not in ACQUISITIONS:
        raise ArgumentError(f"There is no acquisition {name!r}. {nearest(name, ACQUISITIONS)}")
    return partial(ACQUISITIONS[name], **settings) if settings else ACQUISITIONS[name]
