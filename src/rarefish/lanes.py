"""Several trainings side by side on a GPU, each a stream of its own whose step is recorded once.

For networks too large to batch (`packing`) and too small to fill a GPU.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.backends import cudnn

from rarefish.jobs import Job, alike
from rarefish.layers import device_of, dtype_of, setting
from rarefish.packing import fit_packed
from rarefish.replay import Repeated
from rarefish.training import draw_epoch, in_batches, move, weight_groups

LANES = 8
"""Of a ResNet-10 on 32² images, one lane takes 1.1 ms a step on an H200, four 0.5 ms, eight 0.4 ms."""

SMALL = 1_000_000
"""Networks with fewer weights are batched: they would leave eight lanes idle, too."""


def fit_many(jobs: Sequence[Job]) -> None:
    """Trains all models in place, small ones batched, larger ones side by side."""
    for group in alike(jobs):
        is_small = sum(weight.numel() for weight in group[0].model.parameters()) < SMALL
        (fit_packed if is_small else fit_in_lanes)(group)


def fit_in_lanes(jobs: Sequence[Job], num_lanes: int = LANES) -> None:
    """Trains all models in place, several at once: what `fit()` would do to each, but for rounding."""
    with setting(cudnn, "deterministic", True):
        for group in alike(jobs):
            lanes = [Lane(job) for job in group[:num_lanes]]
            for first in range(0, len(group), num_lanes):
                some = group[first : first + num_lanes]
                _fit_beside(list(zip(lanes, some, strict=False)))


def _fit_beside(beside: list[tuple["Lane", Job]]) -> None:
    for lane, job in beside:
        lane.take(job)
    training = beside[0][1].training
    for epoch in range(training.epochs):
        for number in range(beside[0][0].num_batches(epoch)):
            for lane, _ in beside:
                lane.step(epoch, number)
        for lane, job in beside:
            if job.on_epoch:
                lane.give_back(job)
                job.on_epoch(job.model)
    for lane, job in beside:
        lane.give_back(job)


class Lane:
    """Room for one training after another: weights, images and labels of each are written over the last one's."""

    def __init__(self, job: Job) -> None:
        device, dtype = device_of(job.model), dtype_of(job.model)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.training, self.present = job.training, job.present
        self.model = copy.deepcopy(job.model)
        self.rate = torch.zeros((), device=device, dtype=dtype)
        self.optimizer = torch.optim.SGD(
            weight_groups(self.model, job.training),
            lr=self.rate,
            momentum=job.training.momentum,
            fused=device.type == "cuda",
        )
        self.images, self.labels = (torch.empty_like(part, device=device) for part in (job.images, job.labels))
        rates = [job.training.lr_at(epoch) for epoch in range(job.training.epochs)]
        self.rates = torch.tensor(rates, device=device, dtype=dtype)
        self.epochs: list[tuple[list[Tensor], list[Tensor]]] = []
        self.steps: dict[int, Repeated] = {}

    def take(self, job: Job) -> None:
        """Makes ready for a training; all its chance is drawn now, so that nobody waits for it later."""
        training = self.training
        drawn = [draw_epoch(len(self.images), training, job.generator) for _ in range(training.epochs)]
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream(self.images.device))
        with self._here(), torch.no_grad():
            for own, other in zip(self._tensors(), _tensors_of(job), strict=True):
                own.copy_(other)
            for state in self.optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()
            self.epochs = [
                (in_batches(order.to(self.images.device), training), in_batches(moves.to(self.images.device), training))
                for order, moves in drawn
            ]
        self.model.train()

    def num_batches(self, epoch: int) -> int:
        return len(self.epochs[epoch][0])

    def step(self, epoch: int, number: int) -> None:
        orders, moves = self.epochs[epoch]
        with self._here():
            recorded = self.steps.setdefault(len(orders[number]), Repeated(self._update))
            recorded(orders[number], moves[number], self.rates[epoch])

    def give_back(self, job: Job) -> None:
        """Writes what was learned into the job's model, and leaves that in evaluation mode."""
        if self.stream:
            torch.cuda.current_stream(self.images.device).wait_stream(self.stream)
        job.model.load_state_dict(self.model.state_dict())
        job.model.eval()

    def _update(self, rows: Tensor, moves: Tensor, rate: Tensor) -> None:
        self.rate.copy_(rate)
        shown, answers = self.present(move(self.images[rows], moves), self.labels[rows])
        with self.training.casting(self.images.device):
            logits = self.model(shown)
        self.optimizer.zero_grad(set_to_none=True)
        self.training.loss(logits, answers).backward()
        self.optimizer.step()

    def _tensors(self) -> list[Tensor]:
        return [self.images, self.labels, *self.model.state_dict().values()]

    def _here(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()


def _tensors_of(job: Job) -> list[Tensor]:
    return [job.images, job.labels, *job.model.state_dict().values()]
