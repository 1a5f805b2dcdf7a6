"""Many small trainings as one: on a GPU a little network leaves almost all of it idle, a hundred of them do not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from rarefish.layers import device_of
from rarefish.replay import Repeated
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


PACK = 50
"""Models in a batched call. Which kernels a GPU takes, and so how it rounds, depends on their number: with always the
same number, a training comes out the same whichever others are beside it, and a run that is taken up again too."""


def fit_packed(jobs: Sequence[Job], size: int = PACK, fill: bool | None = None) -> None:
    """Trains all models in place with one batched call a step: what `fit()` would do to each, but for rounding.

    Jobs that agree in training settings and number of images go together, `size` at once. To fill a pack, the last job
    is repeated; on a GPU, where a few more cost little, that is the rule.
    """
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.training, job.images.shape, type(job.model), job.present), []).append(job)
    for group in groups.values():
        for first in range(0, len(group), size):
            pack = group[first : first + size]
            is_filled = device_of(pack[0].model).type == "cuda" if fill is None else fill
            _fit_pack(pack, num_repeats=size - len(pack) if is_filled else 0)


def _fit_pack(jobs: Sequence[Job], num_repeats: int) -> None:
    training, device = jobs[0].training, device_of(jobs[0].model)
    places = [*range(len(jobs)), *[len(jobs) - 1] * num_repeats]
    for job in jobs:
        job.model.train()
    images, labels = (torch.stack([part.to(device) for part in parts]) for parts in zip(*_data(jobs), strict=True))
    step = _Step([jobs[place].model for place in places], places, images, labels, training, jobs[0].present)
    for epoch in range(training.epochs):
        drawn = torch.stack([torch.randperm(images.shape[1], generator=job.generator) for job in jobs])
        order = drawn[places].to(device)
        step.lr.fill_(training.lr * training.decay ** (epoch // training.decay_every))
        for rows in order.split(training.batch_size, dim=1):
            step(rows)
        listening = [job for job in jobs if job.on_epoch]
        if listening or epoch + 1 == training.epochs:
            step.give_back([job.model for job in jobs])
        for job in listening:
            assert job.on_epoch is not None
            job.on_epoch(job.model)
    for job in jobs:
        job.model.eval()


def _data(jobs: Sequence[Job]) -> list[tuple[Tensor, Tensor]]:
    return [(job.images, job.labels) for job in jobs]


class _Step:
    """One step of gradient descent with momentum for all models."""

    def __init__(
        self,
        models: list[nn.Module],
        places: list[int],
        images: Tensor,
        labels: Tensor,
        training: Training,
        present: Present,
    ) -> None:
        """`places`: which rows of images and labels each model learns from."""
        stacked, self.buffers = stack_module_state(models)
        # Grouped convolutions, which vmap makes of ours, want the plain layout.
        self.parameters = {name: value.detach().clone().contiguous() for name, value in stacked.items()}
        self.velocity = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.images, self.labels, self.momentum = images, labels, training.momentum
        self.lr = next(iter(self.parameters.values())).new_zeros(())
        self.places = torch.tensor(places, device=images.device)[:, None]
        self.steps: dict[int, Repeated] = {}
        skeleton = models[0]

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
            shown, answers = present(images, labels)
            return functional.cross_entropy(functional_call(skeleton, (parameters, buffers), (shown,)), answers)

        self.skeleton = skeleton
        self.gradients = vmap(grad(loss), randomness="different")

    def __call__(self, rows: Tensor) -> None:
        """The last batch of an epoch may be smaller: it is a step of its own."""
        self.steps.setdefault(rows.shape[1], Repeated(self._update))(rows)

    def _update(self, rows: Tensor) -> None:
        self.skeleton.train()
        gradients = self.gradients(
            self.parameters, self.buffers, self.images[self.places, rows], self.labels[self.places, rows]
        )
        for name, parameter in self.parameters.items():
            self.velocity[name].mul_(self.momentum).add_(gradients[name])
            parameter.sub_(self.velocity[name] * self.lr)

    def give_back(self, models: list[nn.Module]) -> None:
        """Writes what was learned into the models, and leaves them in evaluation mode."""
        with torch.no_grad():
            for row, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(self.parameters[name][row])
                for name, buffer in model.named_buffers():
                    buffer.copy_(self.buffers[name][row])
                model.eval()
