"""Trainings to do, and the plain way to do them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rarefish.training import Present, Training, fit, show_as_is


@dataclass(frozen=True)
class Job:
    """One training to do: what `fit()` takes."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    training: Training
    generator: torch.Generator = field(repr=False)
    present: Present = show_as_is
    on_epoch: Callable[[nn.Module], None] | None = None
    """Hears of each finished epoch, with the model as it is then, evaluating."""


FitAll = Callable[[Sequence[Job]], None]


def fit_each(jobs: Sequence[Job]) -> None:
    """Trains each model in place, one after another."""
    for job in jobs:
        fit(job.model, job.images, job.labels, job.training, job.generator, job.present, job.on_epoch)


def alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in groups that agree in training settings, number of images and kind of network."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.training, job.images.shape, type(job.model), job.present), []).append(job)
    return list(groups.values())
