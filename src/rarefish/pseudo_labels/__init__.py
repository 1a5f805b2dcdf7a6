"""Pseudo-labels: estimated labels of unlabeled images."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.pseudo_labels.label_shift import estimate_prior
    from rarefish.pseudo_labels.monte_carlo import MonteCarlo
    from rarefish.pseudo_labels.posterior import Evidence, Posterior, TrustedPosterior, gather
    from rarefish.pseudo_labels.rules import RULES, Estimator, LabelRule, label_rule

__all__ = [
    "RULES",
    "Estimator",
    "Evidence",
    "LabelRule",
    "MonteCarlo",
    "Posterior",
    "TrustedPosterior",
    "estimate_prior",
    "gather",
    "label_rule",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "label_shift": ("estimate_prior",),
        "monte_carlo": ("MonteCarlo",),
        "posterior": ("Evidence", "Posterior", "TrustedPosterior", "gather"),
        "rules": ("RULES", "Estimator", "LabelRule", "label_rule"),
    },
)
