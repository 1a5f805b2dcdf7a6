"""Many small trainings as one: on a GPU a little network leaves almost all of it idle, a hundred of them do not."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from rarefish.models.layers import casting, device_of
from rarefish.ops.cuda_graph import Repeated
from rarefish.training.jobs import Job, alike
from rarefish.training.loop import Present, Training, draw_epoch, in_batches, move

PACK = 50
"""Models in a batched call. Which kernels a GPU takes, and so how it rounds, depends on their number: with always the
same number, a training comes out the same whichever others are beside it, and a run that is taken up again too."""


def fit_packed(jobs: Sequence[Job], size: int = PACK, fill: bool | None = None) -> None:
    """Trains all models in place with one batched call a step: what `fit()` would do to each, but for rounding.

    Jobs alike go together, `size` at once. To fill a pack, the last job is repeated; on a GPU, where a few more cost
    little, that is the rule.
    """
    for group in alike(jobs):
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
        drawn = zip(*(draw_epoch(images.shape[1], training, job.generator) for job in jobs), strict=True)
        parts = [in_batches(torch.stack(part)[places].to(device), training, dim=1) for part in drawn]
        step.lr.fill_(training.lr_at(epoch))
        for rows, moves in zip(*parts, strict=True):
            step(rows, moves)
        listening = [job for job in jobs if job.on_epoch]
        if listening or epoch + 1 == training.epochs:
            step.give_back([job.model for job in jobs])
        for job in listening:
            assert job.on_epoch is not None
            job.on_epoch(job.model)
    for job in jobs:
        job.model.eval()


def _data(jobs: Sequence[Job]) -> list[tuple[Tensor, Tensor]]:
    return [(job.tensor, job.labels) for job in jobs]


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
        self.images, self.labels, self.training = images, labels, training
        self.lr = next(iter(self.parameters.values())).new_zeros(())
        self.places = torch.tensor(places, device=images.device)[:, None]
        self.steps: dict[int, Repeated] = {}
        skeleton = models[0]

        def loss(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor, labels: Tensor, moves: Tensor
        ) -> Tensor:
            shown, answers = present(move(images, moves), labels)
            with casting(images.device, training.precision):
                logits = functional_call(skeleton, (parameters, buffers), (shown,))
            return training.loss(logits, answers)

        self.skeleton = skeleton
        self.gradients = vmap(grad(loss), randomness="different")

    def __call__(self, rows: Tensor, moves: Tensor) -> None:
        """The last batch of an epoch may be smaller: it is a step of its own."""
        self.steps.setdefault(rows.shape[1], Repeated(self._update))(rows, moves)

    def _update(self, rows: Tensor, moves: Tensor) -> None:
        self.skeleton.train()
        images, labels = self.images[self.places, rows], self.labels[self.places, rows]
        gradients = self.gradients(self.parameters, self.buffers, images, labels, moves)
        for name, parameter in self.parameters.items():
            pull = self.training.weight_decay if parameter.ndim > 2 else 0.0  # one dimension is the models'
            self.velocity[name].mul_(self.training.momentum).add_(gradients[name]).add_(parameter, alpha=pull)
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
