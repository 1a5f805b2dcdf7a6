"""Label estimators, and rules that determine which one is used for the validation set and for the pool.

An estimator returns one label per image of a batch. One rule covers both the validation set and the pool: if the former
used true labels and the latter predictions, the scores of a failure and of similar pool images would point in opposite
directions, and the product kernel would choose the wrong images.
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
"""Function that maps (result of a forward pass, labels from the dataset or None, function for further passes) to one
label per image, or to the probabilities of all classes as columns."""


@dataclass(frozen=True)
class LabelRule:
    """The estimators for validation set and pool; `on_pool` is called with the descriptors of the validation set."""

    on_validation: Estimator
    on_pool: Callable[[Descriptors], Estimator]
    learn: Callable[[Evidence], TrustedPosterior] | None = None
    """For rules that need training, the function that trains the pool's estimator on the trusted labels."""
    needs_validation_labels: bool = False
    needs_pool_labels: bool = False
    notes: tuple[str, ...] = ()
    """Messages about decisions made during training."""
    needs_float32: bool = False
    """Whether float32 is required, because the effect of small distortions would be lost in rounding to bfloat16."""

    def learned(self, evidence: Evidence) -> "LabelRule":
        """Returns the rule with its trained pool estimator."""
        assert self.learn is not None
        estimate = self.learn(evidence)
        return replace(self, on_pool=lambda _: estimate, learn=None, notes=(estimate.note,))


def label_rule(labels: "str | MonteCarlo | Posterior", seed: int = 0) -> LabelRule:
    """Returns the rule with this name, or the rule for a `MonteCarlo` or `Posterior` with its settings."""
    if isinstance(labels, Posterior):
        return LabelRule(given, lambda _: given, learn=labels, needs_validation_labels=True)
    if isinstance(labels, MonteCarlo):
        return LabelRule(labels, lambda _: labels, needs_float32=True)
    if not isinstance(labels, str) or labels not in RULES:
        raise ArgumentError(f"There is no label estimator {labels!r}. {nearest(str(labels), RULES)}")
    return RULES[labels](seed)


def given(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """Returns the labels of the dataset (paper: S = y)."""
    assert labels is not None, "the reader must return labels"
    return labels.to(view.logits_NC.device)


def predicted(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """Returns the model's predictions (paper: S = ŷ)."""
    return view.logits_NC.argmax(dim=1)


def predicted_probabilities(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """Returns the model's class probabilities."""
    return view.logits_NC.softmax(dim=1)


def as_labels(estimate: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the labels and class probabilities in an estimator's result; probabilities have width 0 if missing."""
    if estimate.ndim == 1:
        return estimate, torch.empty(len(estimate), 0, device=estimate.device)
    return estimate.argmax(dim=1), estimate


@dataclass(frozen=True)
class NearestTrusted:
    """Estimator that returns the label of the validation image with the most similar features (paper: S = p̂(y, z))."""

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
