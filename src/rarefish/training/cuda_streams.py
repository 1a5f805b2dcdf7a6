"""Several trainings in parallel on one GPU, each on its own CUDA stream with a recorded step (CUDA graph).

For networks that are too large for `vmapped` and too small to fill a GPU.
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
from rarefish.ops.cuda_graph import RecordedStep
from rarefish.training.jobs import Job, fit_each, group_compatible
from rarefish.training.loop import draw_epoch, in_batches, move, weight_groups
from rarefish.training.vmapped import fit_vmapped

NUM_STREAMS = 8
"""On an H200, a step of a ResNet-10 on 32x32 images takes 1.1 ms with one stream, 0.5 with four, 0.4 with eight."""

MAX_VMAPPED_WEIGHTS = 1_000_000
"""Networks with fewer weights are trained with vmap: eight streams of them would leave a GPU idle, too."""


def fit_many(jobs: Sequence[Job]) -> None:
    """Trains all models in place: with vmap, on CUDA streams if they are large, one by one if images are on disk."""
    fit_each([job for job in jobs if isinstance(job.images, Stored)])
    for group in group_compatible([job for job in jobs if not isinstance(job.images, Stored)]):
        is_small = sum(weight.numel() for weight in group[0].model.parameters()) < MAX_VMAPPED_WEIGHTS
        (fit_vmapped if is_small else fit_on_streams)(group)
        gc.collect()  # a CUDA graph and its step reference each other and hold GPU memory


def fit_on_streams(jobs: Sequence[Job], num_streams: int = NUM_STREAMS) -> None:
    """Trains all models in place, several in parallel; equals `fit()` for each up to rounding.

    On a GPU, two runs may differ in rounding too: cuDNN's deterministic kernels were seen to deadlock when several
    streams used them.
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
    """All batches of one size of a training, in order, drawn in advance."""

    rows: Int[Tensor, "steps B"]
    moves: Int[Tensor, "steps B moves"]
    rates: Float[Tensor, " steps"]
    position: Int[Tensor, " one"]
    """The next step; incremented by the step itself."""


class StreamTrainer:
    """Runs one training after another on a CUDA stream of its own, without waiting for the host.

    Weights, images and batches of a new training overwrite those of the last one, so that recorded steps stay valid.
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
        self.steps: dict[int, RecordedStep] = {}

    def load(self, job: Job) -> None:
        """Copies in a training; all its random numbers are drawn now, so that no step waits for them."""
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
        """Copies the trained weights into the job's model and sets evaluation mode."""
        with self._on_current_stream():
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
        rows, moves, rate = (part.index_select(0, plan.position)[0] for part in (plan.rows, plan.moves, plan.rates))
        inputs, targets = self.present(move(self.images[rows], moves), self.labels[rows])
        with casting(self.images.device, self.training.precision):
            logits = self.model(inputs)
        weights = [weight for weight, _ in self.weights]
        gradients = torch.autograd.grad(self.training.loss(logits, targets), weights)
        with torch.no_grad():
            torch._foreach_mul_(self.velocities, self.training.momentum)
            torch._foreach_add_(self.velocities, gradients)
            for velocity, (weight, decay) in zip(self.velocities, self.weights, strict=True):
                if decay:
                    velocity.add_(weight, alpha=decay)
            torch._foreach_sub_(weights, torch._foreach_mul(self.velocities, rate))
            plan.position.add_(1)

    def _tensors(self) -> list[Tensor]:
        return [self.images, self.labels, *self.model.state_dict().values()]

    @contextmanager
    def _on_current_stream(self) -> Iterator[None]:
        """Runs the block on the current stream, ordered after the trainer's earlier work and before its later work."""
        current = torch.cuda.current_stream(self.images.device) if self.stream else None
        if current and self.stream:
            current.wait_stream(self.stream)
        yield
        if current and self.stream:
            self.stream.wait_stream(current)


def _tensors_of(job: Job) -> list[Tensor]:
    return [job.tensor, job.labels, *job.model.state_dict().values()]
