"""Settings and result of a training on image files; does not import torch."""

import math
from dataclasses import dataclass, field

from rarefish.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Course:
    """Settings of a training on image files."""

    epochs: int = 30
    """Maximum number of epochs; the learning rate decays to 0 over them along a cosine."""
    batch_size: int = 32
    optimizer: str = "adamw"
    """`adamw`, or `sgd` with Nesterov momentum 0.9."""
    lr: float = 1e-3
    """Peak learning rate, reached after the warm-up."""
    weight_decay: float = 0.02
    """Applied to weights only, not to biases and norms."""
    warmup: float = 0.05
    """Fraction of all steps over which the learning rate rises from 0."""
    augment: bool = True
    """Whether each image is randomly enlarged and shifted a little."""
    flip: bool = True
    """With `augment`, mirror each image with probability 0.5; turn it off for digits, text and other images whose left
    and right differ."""
    balanced: bool = False
    """Whether all classes are sampled equally often; images of rare classes are then repeated."""
    patience: int | None = None
    """Stop after this many epochs without a better balanced accuracy on the validation set; None: never."""
    precision: str = "auto"
    """`float32`, `bfloat16` (mixed precision), or `auto`: bfloat16 on a GPU that supports it."""
    label_smoothing: float = 0.0
    """Label smoothing of the cross-entropy; useful where some labels are wrong."""
    workers: int = 0
    """Processes that decode images; the number does not change the result."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.lr <= 0 or self.workers < 0 or self.weight_decay < 0:
            raise ArgumentError(
                f"Training needs epochs and batch_size >= 1, lr > 0, weight_decay and workers >= 0, not {self}."
            )
        if not (0 <= self.warmup < 1 and 0 <= self.label_smoothing < 1):
            raise ArgumentError(f"warmup and label_smoothing are fractions, at least 0 and below 1, not {self}.")
        if self.patience is not None and self.patience < 1:
            raise ArgumentError(f"patience must be at least 1, or None for never, not {self.patience}.")
        for name, known in (("optimizer", ("adamw", "sgd")), ("precision", ("auto", "float32", "bfloat16"))):
            if getattr(self, name) not in known:
                raise ArgumentError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}.")

    def lr_at(self, step: int, num_steps: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        warmup_steps = int(self.warmup * num_steps)
        if step < warmup_steps:
            return self.lr * (step + 1) / warmup_steps
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (num_steps - warmup_steps)))


@dataclass(frozen=True)
class Epoch:
    """Metrics of one epoch; accuracy and recall are measured on the validation set."""

    number: int
    """Counted from 1."""
    loss: float
    """Mean training loss over the images, as augmented."""
    accuracy: float
    recall: tuple[float, ...]
    """Recall of each class; NaN for a class without validation images."""

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes that have validation images."""
        known = [value for value in self.recall if not math.isnan(value)]
        return sum(known) / len(known)


@dataclass(frozen=True)
class TrainingResult:
    """History of a finished training; the model has the weights of the best epoch."""

    history: tuple[Epoch, ...]
    unreadable: dict[int, str] = field(default_factory=dict)
    """Images that could not be read: index -> reason."""

    @property
    def epochs(self) -> int:
        return len(self.history)

    @property
    def best(self) -> Epoch:
        """The epoch with the best balanced accuracy; the earliest of several."""
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

    def is_over(self, course: Course) -> bool:
        """Whether the maximum of epochs is reached or patience has run out."""
        waited = self.epochs - self.best_epoch if self.history else 0
        return self.epochs >= course.epochs or (course.patience is not None and waited >= course.patience)
