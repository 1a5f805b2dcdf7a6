"""The training loop on labeled images in memory or on disk, with validation, DDP and checkpoints."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from rarefish.data.lazy_images import Images, Stored
from rarefish.data.reader import Data, Reader, labels_of
from rarefish.errors import ArgumentError, DataError, LabelError, NotFiniteError, list_some
from rarefish.models.layer_selection import casting, check_logits, device_of, dtype_of, evaluating
from rarefish.training.augment import augment, draw_moves
from rarefish.training.checkpoints import fingerprint, resume, save_epoch
from rarefish.training.config import Epoch, Training, TrainingResult
from rarefish.training.evaluation import evaluate
from rarefish.training.optimizers import make_optimizer, take_step

Present = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function that maps the (images, labels) of a batch to the model's inputs and targets."""

SMALL_REMAINDER = 8
"""A last batch smaller than 1 / SMALL_REMAINDER of the batch size is too small for batch statistics: with four images
instead of 64, a ResNet lost 2 percentage points of accuracy."""


def show_as_is(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns images and labels unchanged."""
    return images, labels


@dataclass(frozen=True)
class Share:
    """The part of every batch that this process handles if several processes train one model (DDP)."""

    rank: int = 0
    size: int = 1

    def splits(self, num_rows: int) -> bool:
        """Returns whether a batch is split: only if each process gets two images, as normalization layers need."""
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
        """Copies the running statistics of the first process to all others, which computed them from other images."""
        for buffer in model.buffers() if self.size > 1 else ():
            torch.distributed.broadcast(buffer, src=0)

    def loss(self, training: Training, logits: Tensor, targets: Tensor, num_rows: int) -> Tensor:
        """Returns a loss whose average over the processes is the mean over the whole batch of `num_rows` images.

        There may be several targets per image, depending on `present`.
        """
        if not self.splits(num_rows):
            return cross_entropy(training, logits, targets)
        num_own = len(range(self.rank, num_rows, self.size))
        num_targets = len(targets) // num_own * num_rows
        return cross_entropy(training, logits, targets, reduction="sum") * (self.size / num_targets)


def fit(
    model: nn.Module,
    images: Float[Tensor, "N ..."] | Stored | Data,
    labels: Int[Tensor, " N"] | None,
    training: Training,
    generator: torch.Generator,
    present: Present = show_as_is,
    on_epoch: Callable[[nn.Module], None] | None = None,
    *,
    validation: Data | None = None,
    share: Share | None = None,
    checkpoint: Path | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Trains the model in place, leaves it in evaluation mode and returns the history.

    Args:
        images: Images in memory or on disk, or a dataset of images with labels. Unreadable images of a dataset are left
            out; in the other two cases, they raise an error.
        labels: The class of each image; None uses the labels of the dataset.
        present: Function that maps the (images, labels) of each batch to inputs and targets.
        on_epoch: Called after each epoch with the model in evaluation mode.
        validation: Labeled images on which the model is evaluated after each epoch, to keep the weights of the best
            epoch. Without a validation set, the weights of the last epoch are kept.
        checkpoint: File that the first process writes after each epoch. If the same training run is started again, it
            resumes from this file and ends with the same weights, unless the network itself draws random numbers
            (dropout) and `seed_dropout` is off. The checkpoint of another run is overwritten. The caller removes
            the file.
        progress: Whether to show progress bars.
    """
    device, share, unreadable = device_of(model), share or Share(), dict[int, str]()
    reader = Reader(batch_size=training.batch_size, num_workers=training.num_workers, progress=progress)
    source, labels_N, num_classes = _open(model, images, labels, validation, training, reader, unreadable)
    key = _checkpoint_key(model, images, labels_N, validation, training, generator) if checkpoint else ""
    optimizer = make_optimizer(model, training)
    result, best = resume(checkpoint, key, model, optimizer, generator) if checkpoint else (TrainingResult(), {})
    unreadable.update(result.unreadable)
    share.wait()  # no process may remove a checkpoint before all others have read it
    source = source.to(device) if isinstance(source, Tensor) else source
    run = _Run(model, share.wrap(model), optimizer, source, labels_N.to(device), training, present, share, progress)
    while not result.is_over(training):
        epoch = Epoch(result.epochs + 1, run.train_epoch(result.epochs, generator))
        model.eval()
        share.sync_buffers(model)
        if validation is not None:
            epoch = _validated(epoch, model, validation, num_classes, training, reader)
        result = TrainingResult((*result.history, epoch), unreadable)
        if validation is not None and result.best_epoch == epoch.number:
            best = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        if checkpoint and share.rank == 0:
            save_epoch(checkpoint, key, model, optimizer, generator, result, best)
        if on_epoch:
            on_epoch(model)
    if best:
        model.load_state_dict(best)
    model.eval()
    return result


@dataclass(frozen=True)
class _Run:
    """The state that all epochs of a training run share."""

    model: nn.Module
    learner: nn.Module
    """The model, which is wrapped if several processes train it."""
    optimizer: torch.optim.Optimizer
    images: Images
    labels: Int[Tensor, " N"]
    training: Training
    present: Present
    share: Share
    progress: bool

    def train_epoch(self, num_done: int, generator: torch.Generator) -> float:
        """Trains one epoch and returns the mean loss."""
        training, device = self.training, self.labels.device
        order_N = draw_order(self.labels, training, generator)
        sizes = batch_sizes(len(order_N), training)
        total, num_seen = torch.zeros((), device=device), 0
        self.model.train()
        with seeded_dropout(training, generator, device):
            moves = draw_moves(sizes, training, generator)
            own = [[self.share.of(part) for part in drawn.to(device).split(sizes)] for drawn in (order_N, moves)]
            batches = self._read(*own, title=f"epoch {num_done + 1}" if self.progress else "")
            for number, (size, (images, rows, moves)) in enumerate(zip(sizes, batches, strict=True)):
                if not len(rows):
                    continue
                lr = training.lr_at(num_done * len(sizes) + number, training.epochs * len(sizes))
                num_images = size if self.share.splits(size) else len(rows)
                is_small = is_small_remainder(num_images, min(len(order_N), training.batch_size))
                total += self._take_step(images, rows, moves, size, lr, is_small) * len(rows)
                num_seen += len(rows)
        if len(order_N) and not num_seen:
            assert isinstance(self.images, Stored) and self.images.unreadable
            raise _none_readable(len(order_N), self.images.unreadable)
        return float(total) / max(num_seen, 1)

    def _read(
        self, rows_of: list[Tensor], moves_of: list[Tensor], title: str
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields the images, rows and moves of each batch, without images that cannot be read."""
        if isinstance(self.images, Tensor):
            for rows, moves in zip(rows_of, moves_of, strict=True):
                yield self.images[rows], rows, moves
            return
        device, dtype = self.labels.device, dtype_of(self.model)
        for rows, moves, batch in zip(rows_of, moves_of, self.images.read(rows_of, title), strict=True):
            if batch.unreadable:
                is_read = torch.tensor([self.images.index[row] not in batch.unreadable for row in rows.tolist()])
                rows, moves = rows[is_read.to(device)], moves[is_read.to(device)]
            yield batch.images.to(device, dtype, non_blocking=True), rows, moves

    def _take_step(self, images: Tensor, rows: Tensor, moves: Tensor, size: int, lr: float, is_small: bool) -> Tensor:
        """Takes a step on this process's part of a batch of `size` images and returns the loss."""
        training, device = self.training, images.device
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = self.present(augment(images, moves, training), self.labels[rows])
        with frozen_norms(self.model, is_small and not training.merge_small_batch), casting(device, training.precision):
            logits = check_logits(self.learner(inputs), len(inputs))
        loss = self.share.loss(training, logits, targets, size)
        take_step(self.optimizer, loss)
        return loss.detach()


def _open(
    model: nn.Module,
    images: Images | Data,
    labels: Tensor | None,
    validation: Data | None,
    training: Training,
    reader: Reader,
    unreadable: dict[int, str],
) -> tuple[Images, Int[Tensor, " N"], int]:
    """Returns the images, their labels (-1 if unreadable) and the number of classes; raises if training is impossible.

    The number of classes is 0 if nothing depends on it.
    """
    if validation is None and training.patience is not None:
        raise ArgumentError("patience needs a validation set. Give one, or set patience=None.")
    if validation is not None and training.epochs < 1:
        raise ArgumentError(f"Training with a validation set needs epochs >= 1, not {training.epochs}.")
    is_data = not isinstance(images, Tensor | Stored)
    for name, part, is_needed in (("training", images, is_data), ("validation", validation, True)):
        if is_needed and part is not None and not len(part):
            raise DataError(f"The {name} set is empty. Label some images first.")
    if isinstance(images, Tensor | Stored):
        assert labels is not None, "only a dataset contains labels"
        return images, labels, 0 if validation is None else _count_classes(model, validation, training)
    num_classes = _count_classes(model, images if validation is None else validation, training)
    labels_N = _labels(images, reader, unreadable) if labels is None else labels.cpu()
    known = torch.ones(len(labels_N), dtype=torch.bool)
    known[list(unreadable)] = False
    is_wrong = known & ((labels_N < 0) | (labels_N >= num_classes))
    if is_wrong.any():
        values, index = labels_N[is_wrong].unique().tolist(), is_wrong.nonzero()[:, 0].tolist()
        raise LabelError(
            f"The model has {num_classes} classes, so labels must be 0 to {num_classes - 1}, but found "
            f"{list_some(values)} at index {list_some(index)}. Leave unlabeled images out."
        )
    if not known.any():
        raise _none_readable(len(images), unreadable)
    return Stored(images, range(len(images)), training.num_workers, unreadable), labels_N, num_classes


def _count_classes(model: nn.Module, data: Data, training: Training) -> int:
    """Returns the number of the model's logits for the first image that can be read."""
    unreadable: dict[int, str] = {}
    first = next(Reader(batch_size=1, progress=False).read(data, unreadable=unreadable), None)
    if first is None:
        raise _none_readable(len(data), unreadable)
    images = first.images.to(device_of(model), dtype_of(model))
    if training.zoom and images.ndim != 4:
        raise ArgumentError(
            f"zoom needs images of shape (channels, height, width), not {tuple(images.shape[1:])}. "
            "Set zoom=0 and flip=False."
        )
    with torch.no_grad(), evaluating(model):
        return check_logits(model(images), 1).shape[1]


def _none_readable(num_images: int, unreadable: dict[int, str]) -> DataError:
    return DataError(f"None of the {num_images} images can be read: {next(iter(unreadable.values()))}")


def _labels(data: Data, reader: Reader, unreadable: dict[int, str]) -> Int[Tensor, " N"]:
    """Returns the labels of all items, from the list in the dataset or else by reading every item once."""
    own = labels_of(data)
    if own is not None:
        return own
    labels_N = torch.full((len(data),), -1)
    for batch in reader.read(data, title="reading labels", labels=True, unreadable=unreadable):
        assert batch.labels is not None
        labels_N[batch.index] = batch.labels
    return labels_N


def _validated(
    epoch: Epoch, model: nn.Module, validation: Data, num_classes: int, training: Training, reader: Reader
) -> Epoch:
    """Returns the epoch with the accuracy and recall of the model on the validation set."""
    if not math.isfinite(epoch.loss):
        raise NotFiniteError(f"The loss is {epoch.loss} in epoch {epoch.number}. Lower lr, which is {training.lr}.")
    score = evaluate(model, validation, num_classes, reader, training.precision)
    return replace(epoch, accuracy=score.accuracy, recall=tuple(score.recall.tolist()))


def _checkpoint_key(
    model: nn.Module,
    images: Images | Data,
    labels: Tensor,
    validation: Data | None,
    training: Training,
    generator: torch.Generator,
) -> str:
    """Returns a hash of this training run; images on disk count by index, which is the same on every machine."""
    content = torch.tensor(images.index) if isinstance(images, Stored) else images
    return fingerprint(model, (content, labels), validation, training, generator)


def cross_entropy(training: Training, logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Returns the cross-entropy, computed in float32 or better."""
    return functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        targets,
        reduction=reduction,
        label_smoothing=training.label_smoothing,
    )


def draw_epoch(labels: Int[Tensor, " N"], training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws the order of the images in an epoch and the augmentation at each position."""
    order_N = draw_order(labels, training, generator)
    return order_N, draw_moves(batch_sizes(len(order_N), training), training, generator)


def draw_order(labels: Int[Tensor, " N"], training: Training, generator: torch.Generator) -> Int[Tensor, " M"]:
    """Draws the rows of an epoch among those with labels >= 0; if `balanced`, draws a class first and then an image."""
    labels_N = labels.cpu()
    index_N = (labels_N >= 0).nonzero()[:, 0]
    if not training.balanced:
        return index_N[torch.randperm(len(index_N), generator=generator)]
    index_N = index_N[labels_N[index_N].argsort(stable=True)]
    _, counts_C = labels_N[index_N].unique_consecutive(return_counts=True)
    class_N = torch.randint(len(counts_C), (len(index_N),), generator=generator)
    within_N = (torch.rand(len(index_N), generator=generator, dtype=torch.float64) * counts_C[class_N]).long()
    return index_N[(counts_C.cumsum(0) - counts_C)[class_N] + within_N]


def in_batches(part: Tensor, training: Training, dim: int = 0) -> list[Tensor]:
    """Splits what was drawn for an epoch into batches."""
    return list(part.split(batch_sizes(part.shape[dim], training), dim=dim))


def batch_sizes(count: int, training: Training) -> list[int]:
    """Returns the batch sizes; a remainder that is too small for BatchNorm is merged into the last full batch."""
    size = training.batch_size
    sizes = [size] * (count // size) + ([count % size] if count % size else [])
    if training.merge_small_batch and len(sizes) > 1 and is_small_remainder(sizes[-1], size):
        sizes[-2:] = [size + sizes[-1]]
    return sizes


def is_small_remainder(num_images: int, batch_size: int) -> bool:
    """Returns whether a last batch has too few images for batch statistics."""
    return num_images == 1 or num_images < batch_size / SMALL_REMAINDER


@contextmanager
def seeded_dropout(training: Training, generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """With `seed_dropout`, seeds PyTorch's global generators from the generator within the block."""
    if not training.seed_dropout:
        yield
        return
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def frozen_norms(model: nn.Module, is_frozen: bool) -> Iterator[None]:
    """If `is_frozen`, makes BatchNorm use its running statistics within the block, for batches that are too small."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)] if is_frozen else []
    for norm in norms:
        norm.eval()
    yield
    for norm in norms:
        norm.train()


def read_images(data: Data, index: list[int]) -> Tensor:
    """Reads the images at the given indices into one tensor."""
    return torch.cat([batch.images for batch in Reader(progress=False).read(data, index)])
