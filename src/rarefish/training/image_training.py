"""Training on labeled image files that need not fit in memory, with augmentation and resuming."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from rarefish.data.reader import Data, Reader, labels_of
from rarefish.errors import ArgumentError, DataError, LabelError, ModelError, NotFiniteError, list_some
from rarefish.models.layers import casting, check_logits, device_of, dtype_of, evaluating
from rarefish.training.checkpoints import fingerprint, read_checkpoint, write_checkpoint
from rarefish.training.config import Course, Epoch, TrainingResult
from rarefish.training.evaluation import evaluate
from rarefish.training.loop import is_small_remainder, weight_groups

ZOOM, SHIFT = 0.15, 0.08
"""Maximum zoom of an augmented image as a fraction of its side, and maximum shift as a fraction of half its side."""


def fit_files(
    model: nn.Module,
    data: Data,
    validation: Data,
    course: Course,
    generator: torch.Generator,
    *,
    checkpoint: Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    progress: bool = True,
) -> TrainingResult:
    """Trains the model in place, leaves it in evaluation mode and returns the history.

    `checkpoint` is written after every epoch. Called again with the same model, data, settings and generator, the
    training resumes from it and ends with the same weights; the checkpoint of another training is overwritten.
    All random numbers come from the generator, except those that the data set draws itself.
    """
    reader = Reader(batch_size=course.batch_size, num_workers=course.workers, progress=progress)
    result = TrainingResult(())
    labels_N, num_classes = _check(model, data, validation, course, reader, result.unreadable)
    key = fingerprint(model, (data, labels_N), validation, course, generator) if checkpoint else ""
    optimizer = _optimizer(model, course)
    best: dict[str, Tensor] = {}
    if checkpoint and (saved := read_checkpoint(checkpoint, key)):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["generator"])
        best = saved["best"]
        result = TrainingResult(tuple(Epoch(**epoch) for epoch in saved["history"]), saved["unreadable"])
    while not result.is_over(course):
        number, order = result.epochs + 1, draw_order(labels_N, course.balanced, generator)
        loss = _train(model, data, order, course, optimizer, generator, number, reader, result.unreadable)
        score = evaluate(model, validation, num_classes, reader, course.precision)
        epoch = Epoch(number, loss, score.accuracy, tuple(score.recall.tolist()))
        result = TrainingResult((*result.history, epoch), result.unreadable)
        if result.best_epoch == number:
            best = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        if checkpoint:
            write_checkpoint(checkpoint, key, model, optimizer, generator, best, result)
        if on_epoch:
            on_epoch(epoch)
    model.load_state_dict(best)
    model.eval()
    return result


def draw_order(labels_N: Int[Tensor, " N"], balanced: bool, generator: torch.Generator) -> list[int]:
    """Draws the indices of an epoch among labels >= 0; with `balanced`, a class first and then one of its images."""
    index_N = (labels_N >= 0).nonzero()[:, 0]
    if not balanced:
        return index_N[torch.randperm(len(index_N), generator=generator)].tolist()
    index_N = index_N[labels_N[index_N].argsort(stable=True)]
    _, counts_C = labels_N[index_N].unique_consecutive(return_counts=True)
    class_N = torch.randint(len(counts_C), (len(index_N),), generator=generator)
    within_N = (torch.rand(len(index_N), generator=generator, dtype=torch.float64) * counts_C[class_N]).long()
    return index_N[(counts_C.cumsum(0) - counts_C)[class_N] + within_N].tolist()


def augment(images: Float[Tensor, "N C H W"], flip: bool, generator: torch.Generator) -> Float[Tensor, "N C H W"]:
    """Randomly enlarges, shifts and, with `flip`, mirrors each image; the border is repeated outside."""
    zoom, across, down, flipped = torch.rand(4, len(images), generator=generator)
    zoom, zero = 1 - ZOOM * zoom, torch.zeros_like(zoom)
    sign = torch.where(flipped < 0.5, -1.0, 1.0) if flip else torch.ones_like(zoom)
    rows = [[zoom * sign, zero, SHIFT * (2 * across - 1)], [zero, zoom, SHIFT * (2 * down - 1)]]
    theta_N23 = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1).to(images.device, images.dtype)
    grid = functional.affine_grid(theta_N23, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _check(
    model: nn.Module, data: Data, validation: Data, course: Course, reader: Reader, unreadable: dict[int, str]
) -> tuple[Int[Tensor, " N"], int]:
    """Returns the labels, -1 for unreadable images, and the number of classes; raises if training is impossible."""
    for name, part in (("training", data), ("validation", validation)):
        if not len(part):
            raise DataError(f"The {name} set is empty. Label some images first.")
    first = reader.first_images(validation).to(device_of(model), dtype_of(model))
    if course.augment and first.ndim != 4:
        raise ArgumentError(
            f"augment needs images (channels, height, width), not {tuple(first.shape[1:])}. Set augment=False."
        )
    with torch.no_grad(), evaluating(model):
        num_classes = check_logits(model(first), 1).shape[1]
    labels_N = _labels(data, reader, unreadable)
    known = torch.ones(len(labels_N), dtype=torch.bool)
    known[list(unreadable)] = False
    is_wrong = known & ((labels_N < 0) | (labels_N >= num_classes))
    if is_wrong.any():
        values, index = labels_N[is_wrong].unique().tolist(), is_wrong.nonzero()[:, 0].tolist()
        raise LabelError(
            f"The model has {num_classes} classes, so labels must be 0 to {num_classes - 1}; found "
            f"{list_some(values)} at index {list_some(index)}. Leave unlabeled images out."
        )
    if not known.any():
        raise DataError(f"None of the {len(data)} images can be read: {next(iter(unreadable.values()))}")
    return labels_N, num_classes


def _labels(data: Data, reader: Reader, unreadable: dict[int, str]) -> Int[Tensor, " N"]:
    """Returns the labels of all items, from the data set's own list or else by reading every item once."""
    own = labels_of(data)
    if own is not None:
        return own
    labels_N = torch.full((len(data),), -1)
    for batch in reader.read(data, title="reading labels", labels=True, unreadable=unreadable):
        assert batch.labels is not None
        labels_N[batch.index] = batch.labels
    return labels_N


def _optimizer(model: nn.Module, course: Course) -> torch.optim.Optimizer:
    groups = weight_groups(model, course.weight_decay)
    if not groups:
        raise ModelError("No parameter of the model requires a gradient. Call requires_grad_() on those to train.")
    if course.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=course.lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=course.lr)


def _train(
    model: nn.Module,
    data: Data,
    order: list[int],
    course: Course,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    number: int,
    reader: Reader,
    unreadable: dict[int, str],
) -> float:
    """Trains one epoch and returns the mean loss."""
    device, dtype = device_of(model), dtype_of(model)
    per_epoch = -(-len(order) // course.batch_size)
    total, num_seen = torch.zeros((), device=device), 0
    batches = reader.read(data, order, title=f"epoch {number}", labels=True, unreadable=unreadable)
    with seeded_from(generator, device):
        for step, batch in enumerate(batches, start=(number - 1) * per_epoch):
            assert batch.labels is not None
            images, labels = batch.images.to(device, dtype, non_blocking=True), batch.labels.to(device)
            if course.augment:
                images = augment(images, course.flip, generator)
            for group in optimizer.param_groups:
                group["lr"] = course.lr_at(step, course.epochs * per_epoch)
            is_remainder = is_small_remainder(len(images), min(len(order), course.batch_size))
            with training_mode(model, is_remainder), casting(device, course.precision):
                logits = check_logits(model(images), len(images)).float()
                loss = functional.cross_entropy(logits, labels, label_smoothing=course.label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(images)
            num_seen += len(images)
    if not num_seen:
        raise DataError(f"None of the {len(order)} images can be read: {next(iter(unreadable.values()))}")
    if not total.isfinite():
        raise NotFiniteError(f"The loss is {float(total)} in epoch {number}. Lower lr, which is {course.lr}.")
    return float(total) / num_seen


@contextmanager
def seeded_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Seeds PyTorch's global generators, which dropout uses, from the generator; restores them afterwards."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def training_mode(model: nn.Module, freeze_norms: bool) -> Iterator[None]:
    """Sets training mode; with `freeze_norms`, BatchNorm uses its running statistics, for a batch that is too small."""
    model.train()
    if freeze_norms:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
    yield
