"""The training loop on labeled images, in memory or read from disk as needed; with DDP and checkpoints."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rarefish.data.lazy_images import Images, Stored, read_parts
from rarefish.data.reader import Data, Reader
from rarefish.errors import ArgumentError, nearest
from rarefish.models.layers import casting, device_of, dtype_of
from rarefish.training.checkpoints import fingerprint_of, resume, save_epoch

Present = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps (images, labels) of a batch to the model's inputs and targets."""

PRECISIONS = ("float32", "bfloat16")
SMALL_REMAINDER = 8
"""A last batch smaller than 1 / SMALL_REMAINDER of the batch size is merged into the one before: with four images
instead of 64, a ResNet lost 2 points."""


def show_as_is(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns images and labels unchanged."""
    return images, labels


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a training; the defaults are the paper's for MNIST."""

    epochs: int = 50
    batch_size: int = 25
    lr: float = 0.05
    momentum: float = 0.5
    gamma: float = 0.1
    """Factor of learning rate decay."""
    step_size: int = 15
    """Epochs between two decays, as in `torch.optim.lr_scheduler.StepLR`."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the learning rate decays, as in `MultiStepLR`; replaces `step_size` if given."""
    cosine: bool = False
    """Replaces both: linear warm-up over the first tenth of the epochs, then cosine decay to 0."""
    weight_decay: float = 0.0
    """L2 penalty on weights, not on biases and norms."""
    label_smoothing: float = 0.0
    """Label smoothing of the cross-entropy."""
    shift: int = 0
    """Shift each image randomly by up to this many pixels, its border repeated outside."""
    flip: bool = False
    """Mirror each image with probability 0.5."""
    precision: str = "float32"
    """`float32` or `bfloat16` (mixed precision)."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.lr <= 0 or self.step_size < 1:
            raise ArgumentError(f"Training needs epochs >= 0, batch_size and step_size >= 1, lr > 0, not {self}.")
        if self.shift < 0 or self.weight_decay < 0 or not 0 <= self.label_smoothing < 1:
            raise ArgumentError(f"Training needs shift and weight_decay >= 0 and 0 <= label_smoothing < 1, not {self}.")
        if self.precision not in PRECISIONS:
            raise ArgumentError(f"There is no precision {self.precision!r}. {nearest(self.precision, PRECISIONS)}")

    def lr_at(self, epoch: int) -> float:
        """Returns the learning rate of an epoch, counted from 0."""
        if self.cosine:
            warmup_epochs = max(self.epochs // 10, 1)
            progress = (epoch + 0.5 - warmup_epochs) / max(self.epochs - warmup_epochs, 1)
            return self.lr * min((epoch + 0.5) / warmup_epochs, (1 + math.cos(math.pi * max(progress, 0))) / 2)
        num_decays = (
            sum(epoch >= milestone for milestone in self.milestones) if self.milestones else epoch // self.step_size
        )
        return self.lr * self.gamma**num_decays

    def loss(self, logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Returns the cross-entropy, computed in float32 or better."""
        return functional.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)),
            targets,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )


@dataclass(frozen=True)
class Share:
    """The part of every batch that this process handles when several train one model (DDP)."""

    rank: int = 0
    size: int = 1

    def splits(self, num_rows: int) -> bool:
        """Whether a batch is shared out; one with fewer than two for each, which a norm needs, is everyone's."""
        return 1 < self.size <= num_rows // 2

    def of(self, batch: Tensor) -> Tensor:
        """Returns this process's rows of a batch, or all rows if the batch is not split."""
        return batch[self.rank :: self.size] if self.splits(len(batch)) else batch

    def wrap(self, model: nn.Module) -> nn.Module:
        """Returns the model, wrapped so that gradients are averaged over all processes."""
        return model if self.size == 1 else nn.parallel.DistributedDataParallel(model)

    def wait(self) -> None:
        """Waits until all processes have reached this point."""
        if self.size > 1:
            torch.distributed.barrier()

    def sync_buffers(self, model: nn.Module) -> None:
        """Copies the first process's running statistics to all; each computed its own from its part of the batches."""
        for buffer in model.buffers() if self.size > 1 else ():
            torch.distributed.broadcast(buffer, src=0)

    def loss(self, training: Training, logits: Tensor, targets: Tensor, num_rows: int) -> Tensor:
        """Returns a loss whose average over the processes is the mean over the whole batch of `num_rows` images.

        `present` may have made several targets per image.
        """
        if not self.splits(num_rows):
            return training.loss(logits, targets)
        num_own = len(range(self.rank, num_rows, self.size))
        num_targets = len(targets) // num_own * num_rows
        return training.loss(logits, targets, reduction="sum") * (self.size / num_targets)


def fit(
    model: nn.Module,
    images: Float[Tensor, "N ..."] | Stored,
    labels: Int[Tensor, " N"],
    training: Training,
    generator: torch.Generator,
    present: Present = show_as_is,
    on_epoch: Callable[[nn.Module], None] | None = None,
    share: Share | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Trains the model in place by stochastic gradient descent and leaves it in evaluation mode.

    Args:
        present: Maps (images, labels) of each batch to inputs and targets.
        on_epoch: Called after each epoch with the model in evaluation mode.
        checkpoint: File that the first process writes after each epoch. The same training, started again, resumes
            from it and ends with the same weights, unless the network itself draws random numbers (dropout). The
            caller removes the file.
    """
    device, share = device_of(model), share or Share()
    learner = share.wrap(model)
    key = _checkpoint_key(model, images, labels, training, generator) if checkpoint else ""
    images, labels = images.to(device) if isinstance(images, Tensor) else images, labels.to(device)
    optimizer = torch.optim.SGD(weight_groups(model, training.weight_decay), lr=training.lr, momentum=training.momentum)
    first_epoch = resume(checkpoint, key, model, optimizer, generator) if checkpoint else 0
    share.wait()  # no process may remove a checkpoint that another has yet to read
    for epoch in range(first_epoch, training.epochs):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = training.lr_at(epoch)
        drawn = [in_batches(part.to(device), training) for part in draw_epoch(len(images), training, generator)]
        sizes = [len(rows) for rows in drawn[0]]
        own = [[share.of(part) for part in parts] for parts in drawn]
        batches = read_parts(images, own[0], device, dtype_of(model))
        for batch, rows, moves, size in zip(batches, *own, sizes, strict=True):
            inputs, targets = present(move(batch, moves), labels[rows])
            with casting(device, training.precision):
                logits = learner(inputs)
            loss = share.loss(training, logits, targets, size)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        model.eval()
        share.sync_buffers(model)
        if checkpoint and share.rank == 0:
            save_epoch(checkpoint, key, epoch + 1, model, optimizer, generator)
        if on_epoch:
            on_epoch(model)
    model.eval()


def _checkpoint_key(
    model: nn.Module, images: Images, labels: Tensor, training: Training, generator: torch.Generator
) -> str:
    """Returns a hash of this training; images on disk enter by index, which is the same on every machine."""
    content = images if isinstance(images, Tensor) else torch.tensor(images.index)
    return fingerprint_of(asdict(training), content, labels, dict(model.state_dict()), generator.get_state())


def weight_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns parameter groups for an optimizer: weights with weight decay, biases and norms without."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [weight for weight in trainable if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [bias for bias in trainable if bias.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def draw_epoch(
    count: int, training: Training, generator: torch.Generator
) -> tuple[Int[Tensor, " N"], Int[Tensor, "N moves"]]:
    """Draws the order of an epoch and, per position, (shift down, shift across, mirrored), or no columns."""
    order_N = torch.randperm(count, generator=generator)
    if not (training.shift or training.flip):
        return order_N, torch.empty(count, 0, dtype=torch.long)
    shifts_N2 = torch.randint(-training.shift, training.shift + 1, (count, 2), generator=generator)
    mirrored_N1 = torch.randint(2, (count, 1), generator=generator) * training.flip
    return order_N, torch.cat([shifts_N2, mirrored_N1], dim=1)


def in_batches(part: Tensor, training: Training, dim: int = 0) -> list[Tensor]:
    """Splits into equal batches and a remainder, which is merged into the last batch if too small for BatchNorm."""
    count, size = part.shape[dim], training.batch_size
    sizes = [size] * (count // size) + ([count % size] if count % size else [])
    if len(sizes) > 1 and is_small_remainder(sizes[-1], size):
        sizes[-2:] = [size + sizes[-1]]
    return list(part.split(sizes, dim=dim))


def is_small_remainder(num_images: int, batch_size: int) -> bool:
    """Whether a last batch has too few images for batch statistics."""
    return num_images == 1 or num_images < batch_size / SMALL_REMAINDER


def move(images: Float[Tensor, "N C H W"] | Tensor, moves: Int[Tensor, "N moves"]) -> Tensor:
    """Returns each image shifted and mirrored by its row of `moves`; the border is repeated outside."""
    if moves.shape[1] == 0:
        return images
    height, width = images.shape[-2:]
    down_N1, across_N1, mirrored_N1 = moves.unsqueeze(2).unbind(1)
    row_NH = (torch.arange(height, device=images.device) + down_N1).clamp(0, height - 1)
    column_NW = (torch.arange(width, device=images.device) + across_N1).clamp(0, width - 1)
    column_NW = torch.where(mirrored_N1 > 0, width - 1 - column_NW, column_NW)
    image_N11 = torch.arange(len(images), device=images.device)[:, None, None]
    return images.movedim(1, -1)[image_N11, row_NH[:, :, None], column_NW[:, None, :]].movedim(-1, 1)


def read_images(data: Data, index: list[int]) -> Tensor:
    """Reads the images at the given indices into one tensor."""
    return torch.cat([batch.images for batch in Reader(progress=False).read(data, index)])
