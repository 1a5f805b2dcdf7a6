"""Several trainings side by side on a GPU, each a stream of its own whose step is recorded once.

For networks too large to batch (`packing`) and too small to fill a GPU.
"""

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.data.lazy_images import Stored
from rarefish.models.layers import casting, device_of, dtype_of
from rarefish.ops.cuda_graph import Repeated
from rarefish.training.jobs import Job, alike, fit_each
from rarefish.training.loop import draw_epoch, in_batches, move, weight_groups
from rarefish.training.vmapped import fit_packed

LANES = 8
"""Of a ResNet-10 on 32² images, one lane takes 1.1 ms a step on an H200, four 0.5 ms, eight 0.4 ms."""

SMALL = 1_000_000
"""Networks with fewer weights are batched: they would leave eight lanes idle, too."""


def fit_many(jobs: Sequence[Job]) -> None:
    """Trains all models in place, small ones batched, larger ones side by side; on stored images, one by one."""
    fit_each([job for job in jobs if isinstance(job.images, Stored)])
    for group in alike([job for job in jobs if not isinstance(job.images, Stored)]):
        is_small = sum(weight.numel() for weight in group[0].model.parameters()) < SMALL
        (fit_packed if is_small else fit_in_lanes)(group)
        gc.collect()  # a recording and its step know each other, and hold a GPU's memory


def fit_in_lanes(jobs: Sequence[Job], num_lanes: int = LANES) -> None:
    """Trains all models in place, several at once: what `fit()` would do to each, but for rounding.

    On a GPU two runs may differ in rounding, too: cuDNN's deterministic kernels were seen to wait for each other
    forever when several streams used them.
    """
    for group in alike(jobs):
        lanes = [Lane(job) for job in group[:num_lanes]]
        for first in range(0, len(group), num_lanes):
            _fit_beside(list(zip(lanes, group[first : first + num_lanes], strict=False)))


def _fit_beside(beside: list[tuple["Lane", Job]]) -> None:
    for lane, job in beside:
        lane.take(job)
    for _ in range(beside[0][1].training.epochs):
        for size in beside[0][0].sizes:
            for lane, _ in beside:
                lane.step(size)
        for lane, job in beside:
            if job.on_epoch:
                lane.give_back(job)
                job.on_epoch(job.model)
    for lane, job in beside:
        lane.give_back(job)


@dataclass(frozen=True)
class Batches:
    """All batches of one size that a training takes, in order."""

    rows: Int[Tensor, "steps B"]
    moves: Int[Tensor, "steps B moves"]
    rates: Float[Tensor, " steps"]
    place: Int[Tensor, " one"]
    """The next step; the step itself counts on."""


class Lane:
    """Room for one training after another: weights, images and plans of each are written over the last one's.

    Steps are taken on a stream of the lane's own and need nothing from outside.
    """

    def __init__(self, job: Job) -> None:
        device = device_of(job.model)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.training, self.present = job.training, job.present
        self.model = copy.deepcopy(job.model)
        groups = weight_groups(self.model, job.training.weight_decay)
        self.weights = [(weight, group["weight_decay"]) for group in groups for weight in group["params"]]
        self.velocities = [torch.zeros_like(weight) for weight, _ in self.weights]
        self.images, self.labels = (torch.empty_like(part, device=device) for part in (job.tensor, job.labels))
        self.sizes = [len(part) for part in in_batches(torch.arange(len(job.images)), job.training)]
        self.plans: dict[int, Batches] = {}
        self.steps: dict[int, Repeated] = {}

    def take(self, job: Job) -> None:
        """Makes ready for a training; all its chance is drawn now, so that nobody waits for it later."""
        with self._usual(), torch.no_grad():
            for own, other in zip(self._tensors(), _tensors_of(job), strict=True):
                own.copy_(other)
            torch._foreach_zero_(self.velocities)
            for size, plan in self._plans_of(job).items():
                if size not in self.plans:
                    self.plans[size] = plan
                    self.steps[size] = Repeated(partial(self._update, plan), self.stream)
                for name in ("rows", "moves", "rates", "place"):
                    getattr(self.plans[size], name).copy_(getattr(plan, name))
        self.model.train()

    def step(self, size: int) -> None:
        self.steps[size]()

    def give_back(self, job: Job) -> None:
        """Writes what was learned into the job's model, and leaves that in evaluation mode."""
        with self._usual():
            job.model.load_state_dict(self.model.state_dict())
        job.model.eval()

    def _plans_of(self, job: Job) -> dict[int, Batches]:
        device, dtype = device_of(job.model), dtype_of(job.model)
        batches: dict[int, list[tuple[Tensor, Tensor, float]]] = {}
        for epoch in range(self.training.epochs):
            drawn = draw_epoch(len(job.images), self.training, job.generator)
            for rows, moves in zip(*(in_batches(part, self.training) for part in drawn), strict=True):
                batches.setdefault(len(rows), []).append((rows, moves, self.training.lr_at(epoch)))
        return {
            size: Batches(
                torch.stack([rows for rows, _, _ in some]).to(device),
                torch.stack([moves for _, moves, _ in some]).to(device),
                torch.tensor([rate for _, _, rate in some], device=device, dtype=dtype),
                torch.zeros(1, dtype=torch.long, device=device),
            )
            for size, some in batches.items()
        }

    def _update(self, plan: Batches) -> None:
        rows, moves, rate = (part.index_select(0, plan.place)[0] for part in (plan.rows, plan.moves, plan.rates))
        shown, answers = self.present(move(self.images[rows], moves), self.labels[rows])
        with casting(self.images.device, self.training.precision):
            logits = self.model(shown)
        weights = [weight for weight, _ in self.weights]
        gradients = torch.autograd.grad(self.training.loss(logits, answers), weights)
        with torch.no_grad():
            torch._foreach_mul_(self.velocities, self.training.momentum)
            torch._foreach_add_(self.velocities, gradients)
            for velocity, (weight, pull) in zip(self.velocities, self.weights, strict=True):
                if pull:
                    velocity.add_(weight, alpha=pull)
            torch._foreach_sub_(weights, torch._foreach_mul(self.velocities, rate))
            plan.place.add_(1)

    def _tensors(self) -> list[Tensor]:
        return [self.images, self.labels, *self.model.state_dict().values()]

    @contextmanager
    def _usual(self) -> Iterator[None]:
        """The usual stream, after all that the lane did; the lane goes on after it."""
        usual = torch.cuda.current_stream(self.images.device) if self.stream else None
        if usual and self.stream:
            usual.wait_stream(self.stream)
        yield
        if usual and self.stream:
            self.stream.wait_stream(usual)


def _tensors_of(job: Job) -> list[Tensor]:
    return [job.tensor, job.labels, *job.model.state_dict().values()]
