"""The table of acquisitions by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from rarefish.acquisitions.bait import choose_bait
from rarefish.acquisitions.class_balance import choose_by_quota, choose_similar
from rarefish.acquisitions.corrected_entropy import choose_by_corrected_entropy
from rarefish.acquisitions.coverage import choose_coverage
from rarefish.acquisitions.direct import choose_direct
from rarefish.acquisitions.diversity import choose_badge, choose_core_set
from rarefish.acquisitions.dropquery import choose_dropquery
from rarefish.acquisitions.epig import choose_epig
from rarefish.acquisitions.fisher_kernel import choose_fisher
from rarefish.acquisitions.galaxy import choose_galaxy
from rarefish.acquisitions.interface import Acquisition, Choice
from rarefish.acquisitions.max_herding import choose_max_herding
from rarefish.acquisitions.nearest_failures import choose_nearest_failures
from rarefish.acquisitions.posterior_quotas import choose_by_posterior, choose_likeliest
from rarefish.acquisitions.probcover import choose_probcover
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.acquisitions.typiclust import choose_typical
from rarefish.acquisitions.uherding import choose_uherding
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
    "probcover": choose_probcover,
    "max_herding": choose_max_herding,
    "uherding": choose_uherding,
    "dropquery": choose_dropquery,
    "bait": choose_bait,
    "nearest_failures": choose_nearest_failures,
    "corrected_entropy": choose_by_corrected_entropy,
    "galaxy": choose_galaxy,
    "direct": choose_direct,
    "posterior_quotas": choose_by_posterior,
    "posterior_entropy": partial(choose_likeliest, by_entropy=True),
    "posterior_likeliest": partial(choose_likeliest, by_entropy=False),
    "features": partial(choose_fisher, kernel="features", labels="prediction"),
    "coverage": choose_coverage,
    "coverage_true": partial(choose_coverage, labels="true"),
    "fisher": choose_fisher,
    "fisher_true": partial(choose_fisher, labels="true"),
}
"""Each function takes (situation, budget, generator), and its own settings as keyword arguments.

`features` is the paper's baseline without labels; `fisher` with `kernel="features"` weights the same kernel by the
posterior. `fisher_true` and `coverage_true` use the true labels of the pool, which gives upper bounds for experiments.
"""


def find_acquisition(name: str, **settings: Any) -> Acquisition:
    """Returns the acquisition with this name, with its own settings (such as samples= or labels=) bound."""
    if name not in ACQUISITIONS:
        raise ArgumentError(f"There is no acquisition {name!r}. {nearest(name, ACQUISITIONS)}")
    return partial(ACQUISITIONS[name], **settings) if settings else ACQUISITIONS[name]
