"""Images similar to the model's failures according to the Fisher kernel: `select()` as an acquisition."""

from collections.abc import Sequence

import torch

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.kernels import needs_scores
from rarefish.models.layer_selection import device_of
from rarefish.models.networks import classifier_of
from rarefish.pseudo_labels.monte_carlo import STATISTICS, MonteCarlo
from rarefish.pseudo_labels.posterior import Posterior
from rarefish.selection import select

MONTE_CARLO_BATCH_FACTOR = 32
"""Batches are split so that images × samples fit into the batch size; a GPU needs larger batches to be efficient."""


def choose_fisher(
    situation: Situation,
    budget: int,
    generator: torch.Generator,
    *,
    kernel: str = "fisher",
    labels: str | MonteCarlo | Posterior = "posterior",
    layers: Sequence[str] | None = None,
) -> Choice:
    """Chooses images by calling `select()`, with its defaults or another kernel, label estimator or set of layers."""
    sampled = monte_carlo_passes(labels, classifier_of(situation.model)[1].out_features)
    batch_factor = MONTE_CARLO_BATCH_FACTOR if sampled and device_of(situation.model).type == "cuda" else 1
    selection = select(
        situation.model,
        situation.pool,
        situation.validation,
        budget=budget,
        layers=layers,
        kernel=kernel,
        labels=labels,
        exclude=[*situation.labeled, *situation.refused],
        labeled=dict(zip(situation.labeled, situation.labels, strict=False)),
        batch_size=situation.batch_size * batch_factor,
        # `auto` uses float32 if Monte Carlo labels require it.
        precision="auto" if situation.precision == "bfloat16" else "float32",
        num_workers=situation.workers,
        generator=generator,
        progress=False,
        executor=situation.executor,
    )
    passes_per_image = 1 + needs_scores(kernel) * (1 + sampled)
    passes = len(situation.validation) + passes_per_image * (len(situation.unlabeled) + selection.num_failures)
    estimator = Posterior() if labels == "posterior" else labels
    if isinstance(estimator, Posterior):
        passes += estimator.passes(len(situation.validation), len(situation.labeled), len(situation.unlabeled))
    return Choice(selection.indices.tolist(), passes, selection)


def monte_carlo_passes(labels: str | MonteCarlo | Posterior, num_classes: int) -> int:
    """Returns the passes per image for Monte Carlo labels: for each sample, one forward and one backward per class."""
    estimator = MonteCarlo(statistic=labels) if isinstance(labels, str) and labels in STATISTICS else labels
    return estimator.samples * (1 + num_classes) if isinstance(estimator, MonteCarlo) else 0
