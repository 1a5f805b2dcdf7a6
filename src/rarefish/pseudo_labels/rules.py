"""Label estimators, and the rules that say which one is used for the validation set and for the pool.

An estimator returns a label per image of a batch. One rule covers both sides: if the validation set used true labels
and the pool used predictions, the scores of a failure and of similar pool images would point in opposite directions,
and the product kernel would choose the wrong images.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarefish.descriptors import Descriptors
from rarefish.errors import ArgumentError, nearest
from rarefish.features import View, Watch
from rarefish.kernels import Standardized, similarity, standardize, standardize_layers
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Evidence, Posterior, TrustedPosterior

Estimator = Callable[[View, Tensor | None, Watch], Tensor]
"""(result of a forward pass on a batch, labels from its data set or None, function for further passes) -> one label per
image, or the probabilities of all classes as columns."""


@dataclass(frozen=True)
class LabelRule:
    """The estimators for both sides; `on_pool` is given the descriptors of the validation set."""

    on_validation: Estimator
    on_pool: Callable[[Descriptors], Estimator]
    learn: Callable[[Evidence], TrustedPosterior] | None = None
    """Trains the pool's estimator on the trusted labels, for rules that need training."""
    needs_validation_labels: bool = False
    needs_pool_labels: bool = False
    notes: tuple[str, ...] = ()
    """Messages about decisions made in training."""
    needs_float32: bool = False
    """The effect of small distortions would be lost in the rounding of bfloat16."""

    def learned(self, evidence: Evidence) -> "LabelRule":
        """Returns the rule with its trained pool estimator."""
        assert self.learn is not None
        estimate = self.learn(evidence)
        return replace(self, on_pool=lambda _: estimate, learn=None, notes=(estimate.note,))


def label_rule(labels: "str | MonteCarlo | Posterior", seed: int = 0) -> LabelRule:
    """Returns the rule of that name, or the rule for a `MonteCarlo` or `Posterior` with its settings."""
    if isinstance(labels, Posterior):
        return LabelRule(given, lambda _: given, learn=labels, needs_validation_labels=True)
    if isinstance(labels, MonteCarlo):
        return LabelRule(labels, lambda _: labels, needs_float32=True)
    if not isinstance(labels, str) or labels not in RULES:
        raise ArgumentError(f"There is no label estimator {labels!r}. {nearest(str(labels), RULES)}")
    return RULES[labels](seed)


def given(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """Returns the labels of the data set (paper: S = y)."""
    assert labels is not None, "the reader was asked for labels"
    return labels.to(view.logits_NC.device)


def predicted(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """Returns the model's predictions (paper: S = ŷ)."""
    return view.logits_NC.argmax(dim=1)


def as_labels(estimate: Tensor) -> tuple[Tensor, Tensor]:
    """Splits an estimator's result into a label per image and class probabilities, of width 0 if it gives none."""
    if estimate.ndim == 1:
        return estimate, torch.empty(len(estimate), 0, device=estimate.device)
    return estimate.argmax(dim=1), estimate


@dataclass(frozen=True)
class NearestTrusted:
    """Estimator: the label of the validation image with the most similar features (paper: S = p̂(y, z))."""

    trusted: Standardized
    labels_M: Tensor

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Tensor:
        seen = Standardized(standardize_layers(view.features_ND, view.widths), ())
        return self.labels_M[similarity(seen, self.trusted, "features").argmax(dim=1)]


RULES: dict[str, Callable[[int], LabelRule]] = {
    "true": lambda seed: LabelRule(given, lambda _: given, needs_validation_labels=True, needs_pool_labels=True),
    "prediction": lambda seed: LabelRule(predicted, lambda _: predicted),
    "trace": lambda seed: label_rule(MonteCarlo(statistic="trace", seed=seed)),
    "mutual_information": lambda seed: label_rule(MonteCarlo(statistic="mutual_information", seed=seed)),
    "posterior": lambda seed: label_rule(Posterior()),
    "density": lambda seed: LabelRule(
        given, lambda seen: NearestTrusted(standardize(seen), seen.label), needs_validation_labels=True
    ),
}
