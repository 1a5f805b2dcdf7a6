"""A training job as data, and functions that run one or several jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from rarefish.data.lazy_images import Images
from rarefish.training.config import Training
from rarefish.training.loop import Present, Share, fit, show_as_is


@dataclass(frozen=True)
class Job:
    """The arguments of a call to `fit()`."""

    model: nn.Module
    images: Images
    labels: Tensor
    training: Training
    generator: torch.Generator = field(repr=False)
    present: Present = show_as_is
    on_epoch: Callable[[nn.Module], None] | None = None
    """Called after each epoch with the model, in evaluation mode."""
    checkpoint: Path | None = None
    """File to which `fit()` writes its state after each epoch."""

    @property
    def can_be_batched(self) -> bool:
        """Whether `fit_vmapped()` and `fit_on_streams()` can run the job: plain SGD on images in memory."""
        training = self.training
        is_plain = training.optimizer == "sgd" and training.merge_small_batch
        is_special = training.nesterov or training.zoom or training.seed_dropout or training.patience
        return isinstance(self.images, Tensor) and is_plain and not is_special

    @property
    def tensor(self) -> Tensor:
        """The images as a tensor; they must be in memory."""
        assert isinstance(self.images, Tensor) and self.can_be_batched, "this job can only be run with fit()"
        return self.images


FitAll = Callable[[Sequence[Job]], None]


def fit_each(jobs: Sequence[Job]) -> None:
    """Trains each model in place, one after another."""
    for job in jobs:
        fit_one(job)


def fit_one(job: Job, share: Share | None = None) -> None:
    """Calls `fit()` with the arguments of the job."""
    arguments = (job.training, job.generator, job.present, job.on_epoch)
    fit(job.model, job.images, job.labels, *arguments, share=share, checkpoint=job.checkpoint)


def group_compatible(jobs: Sequence[Job]) -> list[list[Job]]:
    """Returns groups of jobs with the same settings, image shape and architecture, which can run together."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        weights = tuple(weight.shape for weight in job.model.parameters())
        groups.setdefault((job.training, job.images.shape, type(job.model), weights, job.present), []).append(job)
    return list(groups.values())
