"""A start without labels: the network learns to tell by how much an image is turned (Gidaris et al., 2018)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rarefish.data.lazy_images import Stored
from rarefish.models.networks import with_new_classifier
from rarefish.training.jobs import FitAll, Job, fit_each
from rarefish.training.loop import Training

ROTATION = Training(epochs=8, decay_every=3)
"""The paper's settings for MNIST."""


@dataclass(frozen=True)
class Wish:
    """A network that is to be pretrained, and the images it may look at."""

    model: nn.Module
    images: Float[Tensor, "N C H W"] | Stored
    num_classes: int
    """Of the task to come: the width of the fresh classifier."""
    generator: torch.Generator = field(repr=False)
    checkpoint: Path | None = None
    """Where the training is kept after each epoch."""


def pretrain_rotation(
    wishes: Sequence[Wish],
    training: Training = ROTATION,
    fit_all: FitAll = fit_each,
    on_epoch: Callable[[nn.Module], None] | None = None,
) -> list[nn.Module]:
    """Copies that have learned the four-way rotation task, each with a fresh classifier.

    All four rotations of an image stand in one batch, so a batch holds four times `training.batch_size` images.
    """
    jobs = [
        Job(
            with_new_classifier(wish.model, 4, wish.generator),
            wish.images,
            torch.zeros(len(wish.images), dtype=torch.long),
            training,
            wish.generator,
            show_rotations,
            on_epoch,
            wish.checkpoint,
        )
        for wish in wishes
    ]
    fit_all(jobs)
    return [with_new_classifier(job.model, w.num_classes, w.generator) for job, w in zip(jobs, wishes, strict=True)]


def show_rotations(images: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """The images turned by 0, 90, 180 and 270 degrees, and by how many quarter turns each."""
    turned = torch.cat([images.rot90(turns, (-2, -1)) for turns in range(4)])
    return turned, torch.arange(4, device=images.device).repeat_interleave(len(images))
