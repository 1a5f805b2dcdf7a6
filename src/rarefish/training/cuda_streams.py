"""Train several networks in parallel on one GPU, each on its own CUDA stream with a captured step (CUDA graph).

This is for networks that are too large for `vmapped` and too small to keep a GPU busy.
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

from rarefish.models.layer_selection import casting, device_of, dtype_of
from rarefish.ops.cuda_graph import RecordedStep
from rarefish.training.augment import augment
from rarefish.training.jobs import Job, fit_each, group_compatible
from rarefish.training.loop import cross_entropy, draw_epoch, in_batches
from rarefish.training.optimizers import take_sgd_step, weight_groups
from rarefish.training.vmapped import fit_vmapped

NUM_STREAMS = 8
"""A step of a ResNet-10 on 32×32 images takes 1.1 ms on an H200 with one stream, 0.5 with four and 0.4 with eight."""

MAX_VMAPPED_WEIGHTS = 1_000_000
"""Networks with fewer weights are trained with vmap, because even eight streams of them would leave a GPU idle."""


def fit_many(jobs: Sequence[Job]) -> None:
    """Trains all models in place: with vmap, on CUDA streams if they are large, or one by one if only `fit()` can."""
    fit_each([job for job in jobs if not job.can_be_batched])
    for group in group_compatible([job for job in jobs if job.can_be_batched]):
        is_small = sum(weight.numel() for weight in group[0].model.parameters()) < MAX_VMAPPED_WEIGHTS
        (fit_vmapped if is_small else fit_on_streams)(group)
        gc.collect()  # a CUDA graph and its step reference each other and keep GPU memory


def fit_on_streams(jobs: Sequence[Job], num_streams: int = NUM_STREAMS) -> None:
    """Trains all models in place, several in parallel, with the same results as `fit()` up to rounding.

    On a GPU, two runs may also differ in rounding, because cuDNN's deterministic kernels sometimes deadlock if several
    streams use them.
    """
    for group in group_compatible(jobs):
        trainers = [StreamTrainer(job) for job in group[:num_streams]]
        for first in range(0, len(group), num_streams):
            _fit_in_parallel(list(zip(trainers, group[first : first + num_streams], strict=False)))


def _fit_in_parallel(pairs: list[tuple["StreamTrainer", Job]]) -> None:
    for trainer, job in pairs:
        trainer.load(job)
    for _ in range(pairs[0][1].training.epochs):
        for size in pairs[0][0].sizes:
            for trainer, _ in pairs:
                trainer.step(size)
        for trainer, job in pairs:
            if job.on_epoch:
                trainer.copy_to(job)
                job.on_epoch(job.model)
    for trainer, job in pairs:
        trainer.copy_to(job)


@dataclass(frozen=True)
class Batches:
    """All batches of one size in a training run, in order, drawn in advance."""

    rows: Int[Tensor, "steps B"]
    moves: Int[Tensor, "steps B moves"]
    rates: Float[Tensor, " steps"]
    position: Int[Tensor, " one"]
    """The number of the next step, incremented by the step itself."""


class StreamTrainer:
    """Runs one job after another on a separate CUDA stream, without waiting for the host.

    The weights, images and batches of a new job overwrite those of the previous one, so that recorded steps stay
    valid.
    """

    def __init__(self, job: Job) -> None:
        device = device_of(job.model)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.training, self.present = job.training, job.present
        self.model = copy.deepcopy(job.model)
        groups = weight_groups(self.model, job.training.weight_decay)
        self.weights = [weight for group in groups for weight in group["params"]]
        self.decays = [group["weight_decay"] for group in groups for _ in group["params"]]
        self.velocities = [torch.zeros_like(weight) for weight in self.weights]
        self.images, self.labels = (torch.empty_like(part, device=device) for part in (job.tensor, job.labels))
        self.sizes = [len(part) for part in in_batches(torch.arange(len(job.images)), job.training)]
        self.plans: dict[int, Batches] = {}
        self.steps: dict[int, RecordedStep] = {}

    def load(self, job: Job) -> None:
        """Loads a job and draws all its random numbers in advance, so that no step waits for them."""
        with self._on_current_stream(), torch.no_grad():
            for own, other in zip(self._tensors(), _tensors_of(job), strict=True):
                own.copy_(other)
            torch._foreach_zero_(self.velocities)
            for size, plan in self._plans_of(job).items():
                if size not in self.plans:
                    self.plans[size] = plan
                    self.steps[size] = RecordedStep(partial(self._update, plan), self.stream)
                for name in ("rows", "moves", "rates", "position"):
                    getattr(self.plans[size], name).copy_(getattr(plan, name))
        self.model.train()

    def step(self, size: int) -> None:
        self.steps[size]()

    def copy_to(self, job: Job) -> None:
        """Copies the trained weights into the job's model and sets it to evaluation mode."""
        with self._on_current_stream():
            job.model.load_state_dict(self.model.state_dict())
        job.model.eval()

    def _plans_of(self, job: Job) -> dict[int, Batches]:
        device, dtype = device_of(job.model), dtype_of(job.model)
        batches: dict[int, list[tuple[Tensor, Tensor, float]]] = {}
        for epoch in range(self.training.epochs):
            drawn = draw_epoch(job.labels, self.training, job.generator)
            parts = [in_batches(part, self.training) for part in drawn]
            for number, (rows, moves) in enumerate(zip(*parts, strict=True), start=epoch * len(parts[0])):
                rate = self.training.lr_at(number, self.training.epochs * len(parts[0]))
                batches.setdefault(len(rows), []).append((rows, moves, rate))
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
        rows, moves, rate = (part.index_select(0, plan.position)[0] for part in (plan.rows, plan.moves, plan.rates))
        inputs, targets = self.present(augment(self.images[rows], moves, self.training), self.labels[rows])
        with casting(self.images.device, self.training.precision):
            logits = self.model(inputs)
        gradients = torch.autograd.grad(cross_entropy(self.training, logits, targets), self.weights)
        take_sgd_step(self.weights, self.velocities, gradients, self.decays, self.training.momentum, rate)
        plan.position.add_(1)

    def _tensors(self) -> list[Tensor]:
        return [self.images, self.labels, *self.model.state_dict().values()]

    @contextmanager
    def _on_current_stream(self) -> Iterator[None]:
        """Runs the block on the current stream, after the trainer's earlier work and before its later work."""
        current = torch.cuda.current_stream(self.images.device) if self.stream else None
        if current and self.stream:
            current.wait_stream(self.stream)
        yield
        if current and self.stream:
            self.stream.wait_stream(current)


def _tensors_of(job: Job) -> list[Tensor]:
    return [job.tensor, job.labels, *job.model.state_dict().values()]
