"""Acquisitions by the posterior alone: quotas per class, filled at random or with the most likely images.

`fisher` uses the same posterior together with centers and a kernel. The results of these acquisitions show how much of
its performance is due to the posterior.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.class_balance import fill_quotas, take_by_quota
from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.uncertainty import entropy, uncertainties
from rarefish.acquisitions.validation_features import failures_of
from rarefish.checks import check_rule
from rarefish.data.reader import Data
from rarefish.errors import ArgumentError
from rarefish.fisher import DescriberConfig, configure
from rarefish.pseudo_labels.posterior import FEWEST, Posterior, TrustedPosterior, gather

DEFAULT = Posterior()
"""The settings of `labels="posterior"`."""


@dataclass(frozen=True)
class LearnedPosterior:
    """A posterior that was learned in a situation, with the situation's model."""

    situation: Situation
    estimate: TrustedPosterior
    config: DescriberConfig
    passes: int
    """Number of forward and backward passes for learning it and using it on the pool, counted per image."""

    @torch.no_grad()
    def probabilities(self, data: Data, index: Sequence[int] | None = None) -> Float[Tensor, "N C"]:
        """Returns the class probabilities of the images at `index` (all if None)."""
        with self.config.watching() as watch:
            batches = self.situation.reader.read(data, index)
            return torch.cat([self.estimate(watch(batch.images), None, watch).cpu() for batch in batches])

    def of_unlabeled(self) -> Float[Tensor, "N C"]:
        """Returns the class probabilities of the unlabeled images."""
        return self.probabilities(self.situation.pool, self.situation.unlabeled)


def learn_posterior(
    situation: Situation, generator: torch.Generator, labels: Posterior, layers: Sequence[str] | None = None
) -> LearnedPosterior:
    """Returns the posterior learned from the validation set and the labels so far, in the same way as in `select()`."""
    validation, num_unlabeled = situation.validation, len(situation.unlabeled)
    if len(validation) < FEWEST:
        raise ArgumentError(
            f"{len(validation)} validation images are too few to learn a posterior from. Give at least {FEWEST}."
        )
    learn = check_rule(labels, "fisher", None, situation.pool, validation, generator).learn
    assert learn is not None
    reader, model = situation.reader, situation.model
    labeled = dict(zip(situation.labeled, situation.labels, strict=False))
    precision = "auto" if situation.precision == "bfloat16" else "float32"
    config = configure(model, layers, validation, reader, None, precision)
    evidence = gather(
        *(model, config.layers, validation, situation.pool, situation.unlabeled, labeled, reader, generator),
        precision=precision,
        watching=config.watching,
    )
    passes = labels.passes(len(validation), len(situation.labeled), num_unlabeled) + num_unlabeled
    return LearnedPosterior(situation, learn(evidence), config, passes)


def choose_by_posterior(
    situation: Situation,
    budget: int,
    generator: torch.Generator,
    *,
    labels: Posterior = DEFAULT,
    layers: Sequence[str] | None = None,
) -> Choice:
    """Chooses random images within each class predicted by the posterior.

    The quotas per class are equal as far as the pool allows.
    """
    learned = learn_posterior(situation, generator, labels, layers)
    probability_NC = learned.of_unlabeled()
    predicted_N = probability_NC.argmax(dim=1)
    supply = predicted_N.bincount(minlength=probability_NC.shape[1]).tolist()
    shuffled = torch.randperm(len(predicted_N), generator=generator)
    rows = take_by_quota(shuffled, predicted_N, fill_quotas([0] * len(supply), supply, budget))
    return Choice([situation.unlabeled[row] for row in rows], learned.passes)


def choose_likeliest(
    situation: Situation,
    budget: int,
    generator: torch.Generator,
    *,
    by_entropy: bool,
    labels: Posterior = DEFAULT,
    layers: Sequence[str] | None = None,
) -> Choice:
    """Chooses, for each failing class, the images most likely to belong to it according to the posterior.

    The quotas are proportional to the model's failures on the validation set per true class. With `by_entropy`, the
    probability is multiplied by the entropy of the model, so that images it already recognizes are left out. This
    entropy carries little information in the first round, when the classifier is still untrained.
    """
    learned = learn_posterior(situation, generator, labels, layers)
    score_NC, passes = learned.of_unlabeled(), learned.passes + len(situation.validation)
    if by_entropy:
        score_NC = score_NC * uncertainties(situation, entropy, 1, generator)[:, None]
        passes += len(situation.unlabeled) * len(situation.models)
    _, _, failed_F = failures_of(situation)
    quotas = share_out(failed_F.cpu().bincount(minlength=score_NC.shape[1]).tolist(), budget)
    rows = best_per_class(score_NC, quotas, generator)
    return Choice([situation.unlabeled[row] for row in rows], passes)


def share_out(counts: Sequence[int], budget: int) -> list[int]:
    """Returns quotas proportional to the counts, rounded so that they add up to the budget (largest remainders)."""
    total = sum(counts)
    quotas = [budget * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda c: (-(budget * counts[c] % total), c))
    for c in by_remainder[: budget - sum(quotas)]:
        quotas[c] += 1
    return quotas


def best_per_class(score_NC: Float[Tensor, "N C"], quotas: Sequence[int], generator: torch.Generator) -> list[int]:
    """Returns, for each class, the rows with the largest scores, each row once; ties are broken at random.

    The class with the smallest sum of scores takes its rows first, since it has the fewest alternatives.
    """
    shuffled_N = torch.randperm(len(score_NC), generator=generator)
    is_free_N = torch.ones(len(score_NC), dtype=torch.bool)
    rows: list[int] = []
    for c in score_NC.sum(dim=0).argsort(stable=True).tolist():
        free = shuffled_N[is_free_N[shuffled_N]]
        best = free[score_NC[free, c].argsort(descending=True, stable=True)[: quotas[c]]]
        is_free_N[best] = False
        rows += best.tolist()
    return rows
