"""How a training on image files is to go, and how it went. Nothing here needs torch."""

import math
from dataclasses import dataclass, field

from rarefish.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Course:
    """Settings of one training on image files."""

    epochs: int = 30
    """The most there will be; the learning rate falls to 0 over them along a cosine."""
    batch_size: int = 32
    optimizer: str = "adamw"
    """`adamw`, or `sgd` with Nesterov momentum 0.9."""
    lr: float = 1e-3
    """The highest learning rate, reached after the warm-up."""
    weight_decay: float = 0.02
    """Of weights alone: biases and norms are left free."""
    warmup: float = 0.05
    """Share of all steps over which the learning rate rises from 0."""
    augment: bool = True
    """Every image is shown a little enlarged and shifted, differently each time."""
    flip: bool = True
    """With `augment`, half of the images are shown mirrored; off for digits, letters and whatever has a left."""
    balanced: bool = False
    """Every class is shown as often as the others, its images repeated where there are few."""
    patience: int | None = None
    """Stop after so many epochs without a better balanced accuracy on validation; None: never."""
    precision: str = "auto"
    """`float32`, `bfloat16` where it is safe, or `auto`: bfloat16 on a GPU that has it."""
    label_smoothing: float = 0.0
    """How much of each label is shared out over all classes, for labels that are sometimes wrong."""
    workers: int = 0
    """Processes that decode images; their number does not change the result."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.lr <= 0 or self.workers < 0 or self.weight_decay < 0:
            raise ArgumentError(
                f"A course needs epochs and batch_size >= 1, lr > 0, weight_decay and workers >= 0, not {self}."
            )
        if not (0 <= self.warmup < 1 and 0 <= self.label_smoothing < 1):
            raise ArgumentError(f"warmup and label_smoothing are shares, at least 0 and below 1, not {self}.")
        if self.patience is not None and self.patience < 1:
            raise ArgumentError(f"patience must be at least 1, or None for never, not {self.patience}.")
        for name, known in (("optimizer", ("adamw", "sgd")), ("precision", ("auto", "float32", "bfloat16"))):
            if getattr(self, name) not in known:
                raise ArgumentError(f"{name} is {' or '.join(known)}, not {getattr(self, name)!r}.")

    def lr_at(self, step: int, num_steps: int) -> float:
        rising = int(self.warmup * num_steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rising) / (num_steps - rising)))


@dataclass(frozen=True)
class Epoch:
    """How one epoch went; accuracy and recall are on validation."""

    number: int
    """From 1."""
    loss: float
    """Mean over the images it was trained on, as they were shown."""
    accuracy: float
    recall: tuple[float, ...]
    """Share of each class's images that are recognised; NaN for a class with none."""

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes that have images."""
        known = [value for value in self.recall if not math.isnan(value)]
        return sum(known) / len(known)


@dataclass(frozen=True)
class Fitted:
    """What a training came to; the model has the weights of the best epoch."""

    history: tuple[Epoch, ...]
    unreadable: dict[int, str] = field(default_factory=dict)
    """Images that could not be learned from, by index, and why."""

    @property
    def epochs(self) -> int:
        return len(self.history)

    @property
    def best(self) -> Epoch:
        """The epoch with the best balanced accuracy, the earliest of several."""
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
        waited = self.epochs - self.best_epoch if self.history else 0
        return self.epochs >= course.epochs or (course.patience is not None and waited >= course.patience)
