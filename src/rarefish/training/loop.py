"""Training on labeled images, in memory or read as they are needed."""

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
from rarefish.training.checkpoints import fingerprint_of, keep_epoch, take_up

Present = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(images, labels) of a batch -> what the model is shown and what it should answer."""


PRECISIONS = ("float32", "bfloat16")
SMALL_REST = 8
"""A rest of less than one part in so many of a batch is not one: of four images in 64 a ResNet lost 2 points."""


def show_as_is(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images, labels


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of one training; the defaults are the paper's for MNIST."""

    epochs: int = 50
    batch_size: int = 25
    lr: float = 0.05
    momentum: float = 0.5
    decay: float = 0.1
    """The learning rate is multiplied by this …"""
    decay_every: int = 15
    """… after every so many epochs …"""
    decay_at: tuple[int, ...] = ()
    """… or after these, where any are given."""
    cosine: bool = False
    """Instead it rises over the first tenth of the epochs, then falls to nothing along half a cosine."""
    weight_decay: float = 0.0
    """Pull of all weights to 0; biases and norms are left free."""
    label_smoothing: float = 0.0
    """How much of each label is shared out over all classes."""
    shift: int = 0
    """Every image is shown shifted by up to so many pixels, differently each time; its border goes on outside."""
    flip: bool = False
    """Half of the images are shown mirrored."""
    precision: str = "float32"
    """Or `bfloat16`, where that is safe."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.lr <= 0 or self.decay_every < 1:
            raise ArgumentError(f"Training needs epochs >= 0, batch_size and decay_every >= 1, lr > 0, not {self}.")
        if self.shift < 0 or self.weight_decay < 0 or not 0 <= self.label_smoothing < 1:
            raise ArgumentError(f"Training needs shift and weight_decay >= 0, label_smoothing from 0 to 1, not {self}.")
        if self.precision not in PRECISIONS:
            raise ArgumentError(f"There is no precision {self.precision!r}. {nearest(self.precision, PRECISIONS)}")

    def lr_at(self, epoch: int) -> float:
        """In that epoch, the first being 0."""
        if self.cosine:
            rising = max(self.epochs // 10, 1)
            falling = (epoch + 0.5 - rising) / max(self.epochs - rising, 1)
            return self.lr * min((epoch + 0.5) / rising, (1 + math.cos(math.pi * max(falling, 0))) / 2)
        num_falls = sum(epoch >= end for end in self.decay_at) if self.decay_at else epoch // self.decay_every
        return self.lr * self.decay**num_falls

    def loss(self, logits: Tensor, answers: Tensor, reduction: str = "mean") -> Tensor:
        return functional.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)),
            answers,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )


@dataclass(frozen=True)
class Share:
    """Which part of every batch is ours, where several processes train one model (DDP)."""

    rank: int = 0
    size: int = 1

    def splits(self, num_rows: int) -> bool:
        """Whether a batch is shared out; one with fewer than two for each, which a norm needs, is everyone's."""
        return 1 < self.size <= num_rows // 2

    def of(self, batch: Tensor) -> Tensor:
        """Our rows; of a batch that is everyone's, all: the gradients are the same."""
        return batch[self.rank :: self.size] if self.splits(len(batch)) else batch

    def wrap(self, model: nn.Module) -> nn.Module:
        """A model whose gradients are averaged over all processes as they are made."""
        return model if self.size == 1 else nn.parallel.DistributedDataParallel(model)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            torch.distributed.barrier()

    def settle(self, model: nn.Module) -> None:
        """Gives all processes the first one's running statistics, which each took from its own part of a batch."""
        for buffer in model.buffers() if self.size > 1 else ():
            torch.distributed.broadcast(buffer, src=0)

    def loss(self, training: Training, logits: Tensor, answers: Tensor, num_rows: int) -> Tensor:
        """Averaged over processes, this is the mean over a batch of `num_rows` images and all that is made of them."""
        if not self.splits(num_rows):
            return training.loss(logits, answers)
        num_own = len(range(self.rank, num_rows, self.size))
        num_answers = len(answers) // num_own * num_rows
        return training.loss(logits, answers, reduction="sum") * (self.size / num_answers)


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
    """Trains the model in place by stochastic gradient descent; it is left in evaluation mode.

    `present` may change a batch on its way to the model; `on_epoch` is shown the model after each epoch, evaluating.
    `checkpoint` is written after each epoch, by the first process: the same training, started again, goes on from it
    and ends with the weights it would have had, but for chance that a network draws itself. It is left there for the
    caller to remove.
    """
    device, share = device_of(model), share or Share()
    learner = share.wrap(model)
    key = _key(model, images, labels, training, generator) if checkpoint else ""
    images, labels = images.to(device) if isinstance(images, Tensor) else images, labels.to(device)
    optimizer = torch.optim.SGD(weight_groups(model, training.weight_decay), lr=training.lr, momentum=training.momentum)
    begun = take_up(checkpoint, key, model, optimizer, generator) if checkpoint else 0
    share.wait()  # nobody removes a checkpoint that another has still to read
    for epoch in range(begun, training.epochs):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = training.lr_at(epoch)
        drawn = [in_batches(part.to(device), training) for part in draw_epoch(len(images), training, generator)]
        sizes = [len(rows) for rows in drawn[0]]
        own = [[share.of(part) for part in parts] for parts in drawn]
        batches = read_parts(images, own[0], device, dtype_of(model))
        for batch, rows, moves, size in zip(batches, *own, sizes, strict=True):
            shown, answers = present(move(batch, moves), labels[rows])
            with casting(device, training.precision):
                logits = learner(shown)
            loss = share.loss(training, logits, answers, size)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        model.eval()
        share.settle(model)
        if checkpoint and share.rank == 0:
            keep_epoch(checkpoint, key, epoch + 1, model, optimizer, generator)
        if on_epoch:
            on_epoch(model)
    model.eval()


def _key(model: nn.Module, images: Images, labels: Tensor, training: Training, generator: torch.Generator) -> str:
    """Tells this training from others; by places in a data set, which is the same on another machine."""
    places = images if isinstance(images, Tensor) else torch.tensor(images.index)
    return fingerprint_of(asdict(training), places, labels, dict(model.state_dict()), generator.get_state())


def weight_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """For an optimizer: weights, which are pulled to 0, and the rest."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [weight for weight in learned if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [bias for bias in learned if bias.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def draw_epoch(
    count: int, training: Training, generator: torch.Generator
) -> tuple[Int[Tensor, " N"], Int[Tensor, "N moves"]]:
    """The order of one epoch, and how the image at each place of it is moved: (down, across, mirrored), or nothing."""
    order_N = torch.randperm(count, generator=generator)
    if not (training.shift or training.flip):
        return order_N, torch.empty(count, 0, dtype=torch.long)
    shifts_N2 = torch.randint(-training.shift, training.shift + 1, (count, 2), generator=generator)
    mirrored_N1 = torch.randint(2, (count, 1), generator=generator) * training.flip
    return order_N, torch.cat([shifts_N2, mirrored_N1], dim=1)


def in_batches(part: Tensor, training: Training, dim: int = 0) -> list[Tensor]:
    """Equal batches and a rest; one too small for a norm over a batch to mean anything joins the last of them."""
    count, size = part.shape[dim], training.batch_size
    sizes = [size] * (count // size) + ([count % size] if count % size else [])
    if len(sizes) > 1 and is_little(sizes[-1], size):
        sizes[-2:] = [size + sizes[-1]]
    return list(part.split(sizes, dim=dim))


def is_little(num_images: int, batch_size: int) -> bool:
    """Whether so few of a batch are left that a norm over them means nothing."""
    return num_images == 1 or num_images < batch_size / SMALL_REST


def move(images: Float[Tensor, "N C H W"] | Tensor, moves: Int[Tensor, "N moves"]) -> Tensor:
    """Each image shifted and mirrored as its moves say; a border goes on outside."""
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
    """The images at those positions as one tensor."""
    return torch.cat([batch.images for batch in Reader(progress=False).read(data, index)])
