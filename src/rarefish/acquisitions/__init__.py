"""Acquisitions: functions that choose the images to label, all with one signature, and a table of their names."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.acquisitions.bait import choose_bait
    from rarefish.acquisitions.class_balance import choose_by_quota, choose_similar
    from rarefish.acquisitions.corrected_entropy import choose_by_corrected_entropy
    from rarefish.acquisitions.direct import choose_direct
    from rarefish.acquisitions.diversity import choose_badge, choose_core_set
    from rarefish.acquisitions.dropquery import choose_dropquery
    from rarefish.acquisitions.epig import choose_epig
    from rarefish.acquisitions.fisher_kernel import choose_fisher
    from rarefish.acquisitions.galaxy import choose_galaxy
    from rarefish.acquisitions.interface import Acquisition, Choice, Oracle, Situation, take_largest
    from rarefish.acquisitions.max_herding import choose_max_herding
    from rarefish.acquisitions.nearest_failures import choose_nearest_failures
    from rarefish.acquisitions.posterior_quotas import choose_by_posterior, choose_likeliest
    from rarefish.acquisitions.probcover import choose_probcover
    from rarefish.acquisitions.random_sampling import choose_random
    from rarefish.acquisitions.registry import ACQUISITIONS, find_acquisition
    from rarefish.acquisitions.typiclust import choose_typical
    from rarefish.acquisitions.uherding import choose_uherding
    from rarefish.acquisitions.uncertainty import choose_uncertain
    from rarefish.acquisitions.vaal import Vaal, choose_vaal

__all__ = [
    "ACQUISITIONS",
    "Acquisition",
    "Choice",
    "Oracle",
    "Situation",
    "Vaal",
    "choose_badge",
    "choose_bait",
    "choose_by_corrected_entropy",
    "choose_by_posterior",
    "choose_by_quota",
    "choose_core_set",
    "choose_direct",
    "choose_dropquery",
    "choose_epig",
    "choose_fisher",
    "choose_galaxy",
    "choose_likeliest",
    "choose_max_herding",
    "choose_nearest_failures",
    "choose_probcover",
    "choose_random",
    "choose_similar",
    "choose_typical",
    "choose_uherding",
    "choose_uncertain",
    "choose_vaal",
    "find_acquisition",
    "take_largest",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "bait": ("choose_bait",),
        "class_balance": ("choose_by_quota", "choose_similar"),
        "corrected_entropy": ("choose_by_corrected_entropy",),
        "direct": ("choose_direct",),
        "diversity": ("choose_badge", "choose_core_set"),
        "dropquery": ("choose_dropquery",),
        "epig": ("choose_epig",),
        "fisher_kernel": ("choose_fisher",),
        "galaxy": ("choose_galaxy",),
        "interface": ("Acquisition", "Choice", "Oracle", "Situation", "take_largest"),
        "max_herding": ("choose_max_herding",),
        "nearest_failures": ("choose_nearest_failures",),
        "posterior_quotas": ("choose_by_posterior", "choose_likeliest"),
        "probcover": ("choose_probcover",),
        "random_sampling": ("choose_random",),
        "registry": ("ACQUISITIONS", "find_acquisition"),
        "typiclust": ("choose_typical",),
        "uherding": ("choose_uherding",),
        "uncertainty": ("choose_uncertain",),
        "vaal": ("Vaal", "choose_vaal"),
    },
)
