"""The label an image is described with when nobody has labeled it: six estimators and the rule that pairs them.

An estimator looks at one batch and gives a label per image. One label rule owns both sides: were the validation side
described by true labels and the pool side by predictions, the scores of a failure and of its like would point in
opposite directions and the product kernel would choose the wrong images.
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
"""(what a pass over a batch showed, the labels its data set gives, a way to look again) -> a label per image or, in as
many columns as there are classes, how likely each is."""


@dataclass(frozen=True)
class LabelRule:
    """Which label each side is described with; `on_pool` may learn from all of the validation set, once described."""

    on_validation: Estimator
    on_pool: Callable[[Descriptors], Estimator]
    learn: Callable[[Evidence], TrustedPosterior] | None = None
    """Where `on_pool` is only known after learning from the trusted labels."""
    needs_validation_labels: bool = False
    needs_pool_labels: bool = False
    notes: tuple[str, ...] = ()
    """What was decided while learning, in words."""
    needs_float32: bool = False
    """Small distortions drown in bfloat16's rounding."""

    def learned(self, evidence: Evidence) -> "LabelRule":
        """The rule with what it learned."""
        assert self.learn is not None
        estimate = self.learn(evidence)
        return replace(self, on_pool=lambda _: estimate, learn=None, notes=(estimate.note,))


def label_rule(labels: "str | MonteCarlo | Posterior", seed: int = 0) -> LabelRule:
    """The rule of that name; a `MonteCarlo` or `Posterior` is taken with its own settings."""
    if isinstance(labels, Posterior):
        return LabelRule(given, lambda _: given, learn=labels, needs_validation_labels=True)
    if isinstance(labels, MonteCarlo):
        return LabelRule(labels, lambda _: labels, needs_float32=True)
    if not isinstance(labels, str) or labels not in RULES:
        raise ArgumentError(f"There is no label estimator {labels!r}. {nearest(str(labels), RULES)}")
    return RULES[labels](seed)


def given(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """The data set's own label (paper: S = y)."""
    assert labels is not None, "the reader was asked for labels"
    return labels.to(view.logits_NC.device)


def predicted(view: View, labels: Tensor | None, watch: Watch) -> Tensor:
    """The model's own answer (paper: S = ŷ)."""
    return view.logits_NC.argmax(dim=1)


def as_labels(answer: Tensor) -> tuple[Tensor, Tensor]:
    """An estimator's answer as a label per image and, where it gives them, the chances of all classes."""
    if answer.ndim == 1:
        return answer, torch.empty(len(answer), 0, device=answer.device)
    return answer.argmax(dim=1), answer


@dataclass(frozen=True)
class NearestTrusted:
    """The label of the validation image with the most alike features (paper: S = p̂(y, z))."""

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
