"""Training on labeled images held in memory, and how well the result does."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rarefish.errors import ArgumentError
from rarefish.layers import device_of, dtype_of, evaluating
from rarefish.reading import Data, Reader, check_labels

Present = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(images, labels) of a batch -> what the model is shown and what it should answer."""


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
    """… after every so many epochs."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.lr <= 0 or self.decay_every < 1:
            raise ArgumentError(f"Training needs epochs >= 0, batch_size and decay_every >= 1, lr > 0, not {self}.")


@dataclass(frozen=True)
class Share:
    """Which part of every batch is ours, where several processes train one model (DDP)."""

    rank: int = 0
    size: int = 1

    def of(self, batch: Tensor) -> Tensor:
        """Our rows; a batch with fewer than one for each is everyone's, and the gradients are the same."""
        return batch if len(batch) < self.size else batch[self.rank :: self.size]

    def wrap(self, model: nn.Module) -> nn.Module:
        """A model whose gradients are averaged over all processes as they are made."""
        return model if self.size == 1 else nn.parallel.DistributedDataParallel(model)

    def loss(self, logits: Tensor, answers: Tensor, num_rows: int) -> Tensor:
        """Averaged over processes, this is the mean over the whole batch."""
        if self.size == 1 or num_rows < self.size:
            return functional.cross_entropy(logits, answers)
        return functional.cross_entropy(logits, answers, reduction="sum") * (self.size / num_rows)


@dataclass(frozen=True)
class Score:
    """How well a model does on a data set."""

    accuracy: float
    recall: Float[Tensor, " C"]
    """Share of each class's images that are recognised; NaN for a class with none."""
    prediction: Int[Tensor, " N"]


def fit(
    model: nn.Module,
    images: Float[Tensor, "N ..."],
    labels: Int[Tensor, " N"],
    training: Training,
    generator: torch.Generator,
    present: Present = show_as_is,
    on_epoch: Callable[[nn.Module], None] | None = None,
    share: Share | None = None,
) -> None:
    """Trains the model in place by stochastic gradient descent; it is left in evaluation mode.

    `present` may change a batch on its way to the model; `on_epoch` is shown the model after each epoch, evaluating.
    """
    device, share = device_of(model), share or Share()
    learner = share.wrap(model)
    images, labels = images.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, training.decay_every, training.decay)
    for _ in range(training.epochs):
        model.train()
        order = torch.randperm(len(images), generator=generator).to(device)
        for rows in order.split(training.batch_size):
            shown, answers = present(images[rows], labels[rows])
            loss = share.loss(learner(share.of(shown)), share.of(answers), len(answers))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        schedule.step()
        model.eval()
        if on_epoch:
            on_epoch(model)
    model.eval()


def read_images(data: Data, index: list[int]) -> Tensor:
    """The images at those positions as one tensor."""
    return torch.cat([batch.images for batch in Reader(progress=False).read(data, index)])


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, num_classes: int, reader: Reader | None = None) -> Score:
    """Accuracy, recall per class and predictions over a labeled data set."""
    reader = reader or Reader(batch_size=1000, progress=False)
    device, dtype = device_of(model), dtype_of(model)
    predicted, true = [], []
    with evaluating(model):
        for batch in reader.read(data, title="evaluating", labels=True):
            assert batch.labels is not None
            check_labels(batch, num_classes)
            predicted.append(model(batch.images.to(device, dtype)).argmax(dim=1))
            true.append(batch.labels)
    prediction_N, label_N = torch.cat(predicted).cpu(), torch.cat(true).cpu()
    is_right_N = (prediction_N == label_N).float()
    right_C = torch.zeros(num_classes).index_add_(0, label_N, is_right_N)
    recall_C = right_C / label_N.bincount(minlength=num_classes)
    return Score(float(is_right_N.mean()), recall_C, prediction_N)
