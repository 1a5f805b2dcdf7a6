"""Trainings to do, and the plain way to do them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from rarefish.data.lazy_images import Images
from rarefish.training.loop import Present, Share, Training, fit, show_as_is


@dataclass(frozen=True)
class Job:
    """One training to do: what `fit()` takes."""

    model: nn.Module
    images: Images
    labels: Tensor
    training: Training
    generator: torch.Generator = field(repr=False)
    present: Present = show_as_is
    on_epoch: Callable[[nn.Module], None] | None = None
    """Hears of each finished epoch, with the model as it is then, evaluating."""
    checkpoint: Path | None = None
    """Where `fit()` keeps what it has after each epoch."""

    @property
    def tensor(self) -> Tensor:
        """The images, where they are in memory."""
        assert isinstance(self.images, Tensor), "stored images are for fit() alone"
        return self.images


FitAll = Callable[[Sequence[Job]], None]


def fit_each(jobs: Sequence[Job]) -> None:
    """Trains each model in place, one after another."""
    for job in jobs:
        fit_one(job)


def fit_one(job: Job, share: Share | None = None) -> None:
    """`fit()` with what the job says."""
    settings = (job.training, job.generator, job.present, job.on_epoch)
    fit(job.model, job.images, job.labels, *settings, share=share, checkpoint=job.checkpoint)


def alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in groups that agree in training settings, number of images and kind of network."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        weights = tuple(weight.shape for weight in job.model.parameters())
        groups.setdefault((job.training, job.images.shape, type(job.model), weights, job.present), []).append(job)
    return list(groups.values())
