"""Train many small networks in one batched call (`torch.func.vmap`), since a single one leaves a GPU almost idle."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from rarefish.models.layer_selection import casting, device_of
from rarefish.ops.cuda_graph import RecordedStep
from rarefish.training.augment import augment
from rarefish.training.config import Training
from rarefish.training.jobs import Job, group_compatible
from rarefish.training.loop import Present, cross_entropy, draw_epoch, in_batches
from rarefish.training.optimizers import take_sgd_step

GROUP_SIZE = 50
"""Number of models per batched call. It determines which kernels the GPU chooses, and thus how it rounds. Keeping it
constant makes the result of a training run independent of the others that run with it, even after a restart."""


def fit_vmapped(jobs: Sequence[Job], size: int = GROUP_SIZE, fill: bool | None = None) -> None:
    """Trains all models in place with one batched call per step, with the same results as `fit()` up to rounding.

    Args:
        size: Number of models per call; only compatible jobs share a call.
        fill: Whether to repeat the last job until a group has `size` models. None means on a GPU, where that costs
            little.
    """
    for group in group_compatible(jobs):
        for first in range(0, len(group), size):
            chunk = group[first : first + size]
            is_filled = device_of(chunk[0].model).type == "cuda" if fill is None else fill
            _fit_chunk(chunk, num_repeats=size - len(chunk) if is_filled else 0)


def _fit_chunk(jobs: Sequence[Job], num_repeats: int) -> None:
    training, device = jobs[0].training, device_of(jobs[0].model)
    places = [*range(len(jobs)), *[len(jobs) - 1] * num_repeats]
    for job in jobs:
        job.model.train()
    images, labels = (torch.stack([part.to(device) for part in parts]) for parts in zip(*_data(jobs), strict=True))
    step = _BatchedStep([jobs[place].model for place in places], places, images, labels, training, jobs[0].present)
    for epoch in range(training.epochs):
        drawn = zip(*(draw_epoch(job.labels, training, job.generator) for job in jobs), strict=True)
        parts = [in_batches(torch.stack(part)[places].to(device), training, dim=1) for part in drawn]
        num_batches = len(parts[0])
        for number, (rows, moves) in enumerate(zip(*parts, strict=True), start=epoch * num_batches):
            step.lr.fill_(training.lr_at(number, training.epochs * num_batches))
            step(rows, moves)
        with_callback = [job for job in jobs if job.on_epoch]
        if with_callback or epoch + 1 == training.epochs:
            step.copy_to([job.model for job in jobs])
        for job in with_callback:
            assert job.on_epoch is not None
            job.on_epoch(job.model)
    for job in jobs:
        job.model.eval()


def _data(jobs: Sequence[Job]) -> list[tuple[Tensor, Tensor]]:
    return [(job.tensor, job.labels) for job in jobs]


class _BatchedStep:
    """A step of gradient descent with momentum for all models at once."""

    def __init__(
        self,
        models: list[nn.Module],
        places: list[int],
        images: Tensor,
        labels: Tensor,
        training: Training,
        present: Present,
    ) -> None:
        """`places` contains the row of `images` and `labels` on which each model is trained."""
        stacked, self.buffers = stack_module_state(models)
        # vmap turns convolutions into grouped convolutions, which need the contiguous layout.
        self.parameters = {name: value.detach().clone().contiguous() for name, value in stacked.items()}
        self.weights = list(self.parameters.values())
        self.velocities = [torch.zeros_like(weight) for weight in self.weights]
        # The first dimension is that of models. As in `weight_groups`, biases and norms have no weight decay.
        self.decays = [training.weight_decay if weight.ndim > 2 else 0.0 for weight in self.weights]
        self.images, self.labels, self.training = images, labels, training
        self.lr = self.weights[0].new_zeros(())
        self.places = torch.tensor(places, device=images.device)[:, None]
        self.steps: dict[int, RecordedStep] = {}
        template = models[0]

        def loss(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor, labels: Tensor, moves: Tensor
        ) -> Tensor:
            inputs, targets = present(augment(images, moves, training), labels)
            with casting(images.device, training.precision):
                logits = functional_call(template, (parameters, buffers), (inputs,))
            return cross_entropy(training, logits, targets)

        self.template = template
        self.gradients = vmap(grad(loss), randomness="different")

    def __call__(self, rows: Tensor, moves: Tensor) -> None:
        """Takes a step; batches of another size, such as the last of an epoch, are recorded separately."""
        self.steps.setdefault(rows.shape[1], RecordedStep(self._update))(rows, moves)

    def _update(self, rows: Tensor, moves: Tensor) -> None:
        self.template.train()
        images, labels = self.images[self.places, rows], self.labels[self.places, rows]
        gradients = self.gradients(self.parameters, self.buffers, images, labels, moves)
        in_order = [gradients[name] for name in self.parameters]
        take_sgd_step(self.weights, self.velocities, in_order, self.decays, self.training.momentum, self.lr)

    def copy_to(self, models: list[nn.Module]) -> None:
        """Copies the trained weights and buffers into the models and sets them to evaluation mode."""
        with torch.no_grad():
            for row, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(self.parameters[name][row])
                for name, buffer in model.named_buffers():
                    buffer.copy_(self.buffers[name][row])
                model.eval()
