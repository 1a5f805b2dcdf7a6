"""Self-supervised pretraining: the network predicts by how much an image was rotated (Gidaris et al., 2018)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rarefish.data.lazy_images import Stored
from rarefish.models.networks import with_new_classifier
from rarefish.training.config import Training
from rarefish.training.jobs import FitAll, Job, fit_each

ROTATION = Training(epochs=8, step_size=3)
"""The paper's settings for MNIST."""


@dataclass(frozen=True)
class PretrainingJob:
    """A network to pretrain, and the images to use for it."""

    model: nn.Module
    images: Float[Tensor, "N C H W"] | Stored
    num_classes: int
    """Number of classes of the downstream task, which is the width of the new classifier."""
    generator: torch.Generator = field(repr=False)
    checkpoint: Path | None = None
    """File to which the state is written after each epoch."""


def pretrain_rotation(
    pretraining: Sequence[PretrainingJob],
    training: Training = ROTATION,
    fit_all: FitAll = fit_each,
    on_epoch: Callable[[nn.Module], None] | None = None,
) -> list[nn.Module]:
    """Returns copies of the models that are trained on the four-way rotation task and have a new classifier.

    A batch contains all four rotations of each image, and therefore four times `training.batch_size` images.
    """
    trainings = [
        Job(
            with_new_classifier(job.model, 4, job.generator),
            job.images,
            torch.zeros(len(job.images), dtype=torch.long),
            training,
            job.generator,
            show_rotations,
            on_epoch,
            job.checkpoint,
        )
        for job in pretraining
    ]
    fit_all(trainings)
    return [
        with_new_classifier(trained.model, job.num_classes, job.generator)
        for trained, job in zip(trainings, pretraining, strict=True)
    ]


def show_rotations(images: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the images rotated by 0, 90, 180 and 270 degrees, and the number of quarter turns as labels."""
    rotated = torch.cat([images.rot90(turns, (-2, -1)) for turns in range(4)])
    return rotated, torch.arange(4, device=images.device).repeat_interleave(len(images))
