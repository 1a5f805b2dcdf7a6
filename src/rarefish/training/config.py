"""Settings and history of a training run. Does not import torch."""

import math
from dataclasses import dataclass, field

from rarefish.errors import ArgumentError

OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a training run. The defaults are those of the paper for MNIST."""

    epochs: int = 50
    """Number of epochs, or their maximum with `patience`."""
    batch_size: int = 25
    optimizer: str = "sgd"
    """`sgd` or `adamw`."""
    lr: float = 0.05
    """Learning rate, or its highest value with `cosine`."""
    momentum: float = 0.5
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum in SGD."""
    weight_decay: float = 0.0
    """Weight decay; it applies to weights, but not to biases and normalization layers."""
    gamma: float = 0.1
    """Factor by which the learning rate decays."""
    step_size: int = 15
    """Number of epochs between decays, as in `torch.optim.lr_scheduler.StepLR`."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the learning rate decays, as in `MultiStepLR`. If given, they replace `step_size`."""
    cosine: bool = False
    """Use a linear warm-up followed by a cosine decay to 0, instead of `step_size` and `milestones`."""
    warmup: float = 0.1
    """With `cosine`, the fraction of the training during which the learning rate rises."""
    lr_per_step: bool = False
    """With `cosine`, change the learning rate at every step instead of every epoch."""
    label_smoothing: float = 0.0
    """Label smoothing of the cross-entropy; useful if some labels are wrong."""
    shift: int = 0
    """Shift each image randomly by up to this many pixels, padded by repeating the border."""
    zoom: float = 0.0
    """Enlarge each image randomly by up to this fraction of its side, and shift it slightly."""
    flip: bool = False
    """Mirror each image with probability 0.5. Not suitable for digits, text and other images in which left and right
    matter."""
    balanced: bool = False
    """Sample all classes equally often, by repeating images of rare classes."""
    merge_small_batch: bool = True
    """Merge a last batch that is too small for batch statistics into the previous one. If False, BatchNorm uses its
    running statistics for such a batch."""
    seed_dropout: bool = False
    """Seed dropout and other randomness in the network from the generator of the training run. If False, they use
    PyTorch's global generators."""
    patience: int | None = None
    """Stop after this many epochs without a better balanced accuracy on the validation set; None means never."""
    precision: str = "float32"
    """`float32`, `bfloat16` (mixed precision), or `auto`: bfloat16 on a GPU that supports it."""
    num_workers: int = 0
    """Number of processes that decode image files; it does not affect the result."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.step_size < 1 or self.lr <= 0:
            raise ArgumentError(f"Training needs epochs >= 0, batch_size and step_size >= 1, lr > 0, not {self}.")
        if self.shift < 0 or self.weight_decay < 0 or self.num_workers < 0:
            raise ArgumentError(f"Training needs shift, weight_decay and num_workers >= 0, not {self}.")
        if not all(0 <= fraction < 1 for fraction in (self.warmup, self.label_smoothing, self.zoom)):
            raise ArgumentError(
                f"warmup, label_smoothing and zoom must be fractions of at least 0 and less than 1, not {self}."
            )
        if self.shift and self.zoom:
            raise ArgumentError("zoom also shifts images. Set either shift or zoom.")
        if self.nesterov and self.momentum <= 0:
            raise ArgumentError(f"nesterov needs momentum > 0, not {self.momentum}.")
        if self.patience is not None and self.patience < 1:
            raise ArgumentError(f"patience must be at least 1, or None for never, not {self.patience}.")
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}.")

    def lr_at(self, step: int, num_steps: int) -> float:
        """Returns the learning rate of a step, counted from 0, if all epochs together have `num_steps` steps."""
        if self.cosine and self.lr_per_step:
            warmup = float(int(self.warmup * num_steps))
            return cosine_with_warmup(self.lr, (step + 1.0, warmup), (step - warmup, num_steps - warmup))
        epoch = step // (num_steps // self.epochs)
        if self.cosine:
            middle, warmup = epoch + 0.5, max(int(self.warmup * self.epochs), 1)
            decayed = (middle - warmup) / max(self.epochs - warmup, 1)
            return cosine_with_warmup(self.lr, (middle / warmup, 1.0), (decayed, 1.0))
        num_decays = (
            sum(epoch >= milestone for milestone in self.milestones) if self.milestones else epoch // self.step_size
        )
        return self.lr * self.gamma**num_decays


FINE_TUNING = Training(
    epochs=30,
    batch_size=32,
    optimizer="adamw",
    lr=1e-3,
    momentum=0.9,
    nesterov=True,
    weight_decay=0.02,
    cosine=True,
    warmup=0.05,
    lr_per_step=True,
    zoom=0.15,
    flip=True,
    merge_small_batch=False,
    seed_dropout=True,
    precision="auto",
)
"""Settings of `rarefish train` for fine-tuning on a few labeled image files. With `optimizer="sgd"`, they use Nesterov
momentum."""


def cosine_with_warmup(lr: float, rise: tuple[float, float], fall: tuple[float, float]) -> float:
    """Returns a learning rate that rises linearly to `lr` and then falls to 0 along half a cosine.

    Args:
        lr: The highest learning rate.
        rise: How much of the warm-up is done, and its length.
        fall: How much of the decay is done (negative during the warm-up), and its length.
    """
    if fall[0] < 0:
        return lr * rise[0] / rise[1]
    return lr * (1 + math.cos(math.pi * fall[0] / fall[1])) / 2


@dataclass(frozen=True)
class Epoch:
    """Metrics of one epoch. Accuracy and recall are those on the validation set, if there is one."""

    number: int
    """The number of the epoch, counted from 1."""
    loss: float
    """Mean training loss over the augmented images."""
    accuracy: float = math.nan
    recall: tuple[float, ...] = ()
    """Recall of each class, or NaN for a class without validation images."""

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes that have validation images."""
        known = [value for value in self.recall if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class TrainingResult:
    """History of a training run. With a validation set, the model has the weights of the best epoch."""

    history: tuple[Epoch, ...] = ()
    unreadable: dict[int, str] = field(default_factory=dict)
    """Indices of images that could not be read, with the reasons."""

    @property
    def epochs(self) -> int:
        return len(self.history)

    @property
    def best(self) -> Epoch:
        """The epoch with the best balanced accuracy, or the earliest of several."""
        return max(self.history, key=lambda epoch: epoch.balanced_accuracy)

    @property
    def best_epoch(self) -> int:
        return self.best.number

    @property
    def accuracy(self) -> float:
        return self.best.accuracy

    @property
    def recall(self) -> tuple[float, ...]:
        return self.best.recall

    def is_over(self, training: Training) -> bool:
        """Returns whether the maximum number of epochs is reached or patience has run out."""
        if training.patience is None or not self.history:
            return self.epochs >= training.epochs
        return self.epochs >= training.epochs or self.epochs - self.best_epoch >= training.patience
