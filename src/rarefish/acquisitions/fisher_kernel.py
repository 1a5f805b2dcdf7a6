"""Images like those the model fails on, by Fisher kernel."""

from collections.abc import Sequence

import torch

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.kernels import needs_scores
from rarefish.models.layers import device_of
from rarefish.models.networks import classifier_of
from rarefish.pseudo_labels.monte_carlo import STATISTICS, MonteCarlo
from rarefish.pseudo_labels.posterior import Posterior
from rarefish.selection import select

MONTE_CARLO_CROWD = 32
"""A batch is cut so that images × samples make one batch: on a GPU that needs a larger one to be worth a launch."""


def choose_fisher(
    situation: Situation,
    budget: int,
    generator: torch.Generator,
    *,
    kernel: str = "fisher",
    labels: str | MonteCarlo | Posterior = "posterior",
    layers: Sequence[str] | None = None,
) -> Choice:
    """`select()` with its defaults, or another kernel, label estimator or choice of layers."""
    sampled = monte_carlo_passes(labels, classifier_of(situation.model)[1].out_features)
    crowd = MONTE_CARLO_CROWD if sampled and device_of(situation.model).type == "cuda" else 1
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
        batch_size=situation.batch_size * crowd,
        # Monte Carlo labels need float32 in any case, which `auto` knows.
        precision="auto" if situation.precision == "bfloat16" else "float32",
        num_workers=situation.workers,
        generator=generator,
        progress=False,
        executor=situation.executor,
    )
    each = 1 + needs_scores(kernel) * (1 + sampled)
    passes = len(situation.validation) + each * (len(situation.unlabeled) + selection.num_failures)
    learner = Posterior() if labels == "posterior" else labels
    if isinstance(learner, Posterior) and needs_scores(kernel):
        passes += learner.passes(len(situation.validation), len(situation.labeled), len(situation.unlabeled))
    return Choice(selection.indices.tolist(), passes, selection)


def monte_carlo_passes(labels: str | MonteCarlo | Posterior, num_classes: int) -> int:
    """Passes that a Monte Carlo label costs an image: each sample forward, and back for every class."""
    estimator = MonteCarlo(statistic=labels) if isinstance(labels, str) and labels in STATISTICS else labels
    return estimator.samples * (1 + num_classes) if isinstance(estimator, MonteCarlo) else 0
