"""Coverage of what is frequent in the validation set and unknown to the model: the default of `select()`."""

from collections.abc import Sequence

import torch
from torch import nn

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.data.embeddings import Embeddings
from rarefish.pseudo_labels.posterior import FOLDS, Posterior
from rarefish.selection import CANDIDATES, CANDIDATES_PER_PICK, select


def choose_coverage(
    situation: Situation,
    budget: int,
    generator: torch.Generator,
    *,
    cross_fit: bool | None = None,
    labels: str = "posterior",
    layers: Sequence[str] | None = None,
) -> Choice:
    """Chooses images by calling `select()` with its default method.

    Args:
        situation: What is known.
        budget: The number of images.
        generator: The random generator.
        cross_fit: Whether the model is trained on the validation set as well; None means as the situation says.
        labels: `posterior`, or `true` for the true labels of the pool, which gives an upper bound for experiments.
        layers: Layers from which the features are taken; None means the default.
    """
    cross_fit = situation.trained_on_validation if cross_fit is None else cross_fit
    is_embedded = isinstance(situation.pool, Embeddings)
    model: nn.Module | None = None if is_embedded and cross_fit else situation.model
    selection = select(
        model,
        situation.pool,
        situation.validation,
        budget=budget,
        method="coverage",
        cross_fit=cross_fit,
        labels=labels,
        layers=layers,
        exclude=[*situation.labeled, *situation.refused],
        labeled=dict(zip(situation.labeled, situation.labels, strict=False)),
        batch_size=situation.batch_size,
        precision="auto" if situation.precision == "bfloat16" else "float32",
        num_workers=situation.workers,
        generator=generator,
        progress=False,
        executor=situation.executor,
    )
    num_unlabeled, num_validation = len(situation.unlabeled), len(situation.validation)
    num_seen = num_unlabeled + min(num_unlabeled, max(CANDIDATES, CANDIDATES_PER_PICK * budget))
    passes = num_seen + num_validation
    if not is_embedded:
        passes += Posterior().passes(num_validation, len(situation.labeled), num_unlabeled) + FOLDS * num_seen
    return Choice(selection.indices.tolist(), passes, selection)
