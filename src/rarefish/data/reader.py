"""Read batches from any map-style data set, whose items are images, (image, label) pairs or dictionaries."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from rarefish.errors import ArgumentError, DataError, LabelError, RarefishError, list_some
from rarefish.progress import track

IMAGE_KEYS = ("pixel_values", "image", "img", "images")
LABEL_KEYS = ("label", "labels", "fine_label", "target")


def image_of(item: Any) -> Any:
    """Return the image in an item of a data set, or the images in a collated batch."""
    if isinstance(item, Mapping):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise DataError(f"Found no image in an item with {', '.join(map(str, item))}; call it 'image'.")
        return item[key]
    return item[0] if isinstance(item, (tuple, list)) else item


def label_of(item: Any) -> Any:
    """Return the label in an item of a data set, or the labels in a collated batch; None if there is none."""
    if isinstance(item, Mapping):
        return next((item[key] for key in LABEL_KEYS if key in item), None)
    return item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None


def label_at(index: int, item: Any) -> int:
    """Return the class number in the item at that index; raise LabelError if there is none."""
    label = label_of(item)
    if label is None:
        raise LabelError(f"Item {index} has no label, and these settings need one. Give (image, label) items.")
    try:
        number = int(label)
    except (TypeError, ValueError):
        number = None
    if number is None or number != label:
        raise LabelError(f"The label of item {index} is {label!r}, not a class number from 0.")
    return number


def flat_labels(labels: Tensor, index: Tensor) -> Tensor:
    """Return a batch of labels as (N,), given as (N,) or (N, 1); raise LabelError for other shapes and fractions."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or len(flat) != len(index):
        raise LabelError(
            f"The labels of {len(index)} images are of shape {tuple(labels.shape)}; give one class number per image, "
            "such as labels.argmax(dim=1) of one-hot labels."
        )
    if flat.is_floating_point() and len(flat) and (wrong := flat != flat.round()).any():
        place = int(wrong.nonzero()[0])
        raise LabelError(f"The label of item {int(index[place])} is {float(flat[place])}, not a class number from 0.")
    return flat.long()


def stack(images: list[Any], index: Tensor) -> Tensor:
    """Return the images as one tensor; raise DataError unless all are tensors or arrays of the same shape."""
    for i, image in zip(index.tolist(), images, strict=True):
        if not isinstance(image, (Tensor, np.ndarray)):
            raise DataError(
                f"Image {i} is a {type(image).__name__}, not a tensor. Add a transform to the data set that makes it "
                "one, such as torchvision's ToTensor()."
            )
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise DataError(
            f"Images {int(index[0])} to {int(index[-1])} differ in shape: {list_some(sorted(shapes), 3)}. Resize them "
            "in the data set's transform, or give collate_fn= a function that makes a batch of them."
        )
    return default_collate(images)


UNREADABLE = (OSError, SyntaxError, DataError)
"""Exceptions that data sets raise for a damaged or missing file, including Pillow's."""


@runtime_checkable
class Data(Protocol):
    """A map-style data set: it has a length, and its items are images or contain one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class InMemory(Protocol):
    """A data set held in memory that returns many images at once, scaled on access."""

    @property
    def targets(self) -> Sequence[int]:
        """All labels."""
        ...

    def take(self, rows: Tensor) -> Tensor:
        """Return the images at those positions."""
        ...


@runtime_checkable
class Fingerprinted(Protocol):
    """A data set that can detect changes without reading all of its items."""

    def fingerprints(self, *, with_contents: bool = False) -> Mapping[str, str]:
        """Return hashes, by name, of what determines the items, such as files, labels and preprocessing.

        With `with_contents`, files are hashed by content and not only by size and modification time.
        """
        ...


def lies_in_memory(data: object) -> bool:
    """Return whether the images are in memory, so that many can be taken at once."""
    return isinstance(data, (TensorDataset, InMemory))


def labels_of(data: object) -> Tensor | None:
    """Return all labels without reading any image; None if the data set has no list of them."""
    own = data.tensors[1] if isinstance(data, TensorDataset) and len(data.tensors) > 1 else None
    own = getattr(data, "targets", own)
    if own is None:
        return None
    labels = torch.as_tensor(own)
    return flat_labels(labels, torch.arange(len(labels))).cpu()


@dataclass(frozen=True)
class Batch:
    """Some images of a data set, their positions in it and, if requested, their labels."""

    index: Tensor
    images: Tensor
    labels: Tensor | None
    unreadable: dict[int, str] = field(default_factory=dict)
    """Positions of images that could not be read, with the reasons."""

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory, from which a GPU copies asynchronously; called by the DataLoader."""
        return self if self.images.is_cuda else replace(self, images=self.images.pin_memory())


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Settings for reading, used for the validation set and the pool alike."""

    batch_size: int = 256
    num_workers: int = 0
    collate_fn: Any = None
    """Makes a batch from a list of items, as for a DataLoader; None stacks images of the same size."""
    progress: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.num_workers < 0:
            raise ArgumentError(
                f"batch_size must be at least 1 and num_workers at least 0, not {self.batch_size} and "
                f"{self.num_workers}."
            )

    def read(
        self,
        data: Data,
        index: Sequence[int] | None = None,
        *,
        title: str = "",
        labels: bool | Tensor = False,
        unreadable: dict[int, str] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield the images at `index` (all if None) in order, in batches.

        Args:
            data: The data set to read.
            index: The positions of the images.
            title: The title of the progress bar.
            labels: True to return the data set's labels, or a tensor of labels to use instead, one per item.
            unreadable: Collects images that cannot be read, with the reasons; without it they raise DataError.
            sizes: The size of each batch, instead of `batch_size` for all.
        """
        index = range(len(data)) if index is None else index
        if (type(data) is TensorDataset or isinstance(data, InMemory)) and self.collate_fn is None:
            batches: Iterable[Batch | RarefishError] = _slices(
                data, index, sizes or int(self.batch_size), labels is True
            )
        else:
            batches = self._load(data, index, labels is True, sizes)
        for batch in track(batches, total=len(index), title=title, step=_num_images, shown=self.progress):
            if isinstance(batch, RarefishError):
                raise batch
            if batch.unreadable and unreadable is None:
                i, why = next(iter(batch.unreadable.items()))
                raise DataError(f"Image {i} cannot be read: {why}")
            if unreadable is not None:
                unreadable.update(batch.unreadable)
            if not len(batch.index):
                continue
            yield replace(batch, labels=labels[batch.index]) if isinstance(labels, Tensor) else batch

    def _load(
        self, data: Data, index: Sequence[int], with_labels: bool, sizes: Sequence[int] | None
    ) -> "DataLoader[Batch | RarefishError]":
        how: dict[str, Any] = {"batch_size": int(self.batch_size), "sampler": index}
        if sizes:
            ends = list(accumulate(sizes))
            how = {"batch_sampler": [index[end - size : end] for end, size in zip(ends, sizes, strict=True)]}
        return DataLoader(
            _Numbered(data),  # pyright: ignore[reportArgumentType]
            **how,
            num_workers=self.num_workers,
            collate_fn=_Collate(self.collate_fn, with_labels).without_traceback,
            generator=torch.Generator(),  # otherwise it would draw from the global generator
            pin_memory=torch.cuda.is_available(),
        )

    def first_images(self, data: Data) -> Tensor:
        """Return the first image as a batch of one."""
        return self.one(data, 0)

    def one(self, data: Data, index: int) -> Tensor:
        """Return the image at `index` as a batch of one, collated like all others."""
        return self.batch_of(index, data[index])

    def batch_of(self, index: int, item: Any) -> Tensor:
        """Return the image of an item that was read before, as a batch of one."""
        return _Collate(self.collate_fn, False)([(index, item)]).images


def _slices(
    data: TensorDataset | InMemory, index: Sequence[int], size: int | Sequence[int], with_labels: bool
) -> Iterator[Batch]:
    """Yield batches of images in memory (or on a GPU) by indexing tensors instead of reading single items."""
    if isinstance(data, InMemory):
        take, truth = data.take, torch.as_tensor(data.targets) if with_labels else None
    else:
        images, *rest = data.tensors
        if with_labels and not rest:
            raise LabelError(
                f"Item {next(iter(index), 0)} has no label, and these settings need one. Give two tensors."
            )
        take, truth = (lambda rows: images[rows.to(images.device)]), rest[0] if with_labels else None
    for rows in torch.as_tensor(index, dtype=torch.long).split(size if isinstance(size, int) else list(size)):
        labels = None if truth is None else flat_labels(truth[rows.to(truth.device)], rows)
        yield Batch(rows, take(rows), labels)


@dataclass(frozen=True)
class Unreadable:
    """Stands for an item that could not be read."""

    why: str


@dataclass(frozen=True)
class _Numbered:
    """Returns each item with its index, so that a batch knows the positions of its images."""

    data: Data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        try:
            return index, self.data[index]
        except UNREADABLE as error:
            return index, Unreadable(str(error) or type(error).__name__)


@dataclass(frozen=True)
class _Collate:
    collate_fn: Callable[[list[Any]], Any] | None
    with_labels: bool

    def without_traceback(self, numbered: list[tuple[int, Any]]) -> "Batch | RarefishError":
        """Return the batch or the error, because one raised in a worker process would arrive as pages of traceback."""
        try:
            return self(numbered)
        except RarefishError as error:
            return error

    def __call__(self, numbered: list[tuple[int, Any]]) -> Batch:
        bad = {i: item.why for i, item in numbered if isinstance(item, Unreadable)}
        if bad:
            rest = [(i, item) for i, item in numbered if i not in bad]
            none = torch.empty(0, dtype=torch.long)
            return replace(self(rest) if rest else Batch(none, torch.empty(0), none), unreadable=bad)
        index = torch.tensor([i for i, _ in numbered])
        items = [item for _, item in numbered]
        if self.collate_fn:
            together = self.collate_fn(items)
            images, labels = torch.as_tensor(image_of(together)), label_of(together) if self.with_labels else None
            if self.with_labels and labels is None:
                raise LabelError("collate_fn= returned a batch without labels, and these settings need them.")
            if len(images) != len(index):
                raise DataError(
                    f"collate_fn= returned {len(images)} images for {len(index)} items; it must return one per item."
                )
        else:
            images = stack([image_of(item) for item in items], index)
            labels = torch.tensor([label_at(i, item) for i, item in numbered]) if self.with_labels else None
        labels = None if labels is None else flat_labels(torch.as_tensor(labels), index)
        return Batch(index, torch.as_tensor(images), labels)


def _num_images(batch: "Batch | RarefishError") -> int:
    return 0 if isinstance(batch, RarefishError) else len(batch.index) + len(batch.unreadable)


def check_labels(batch: Batch, num_classes: int) -> None:
    """Raise LabelError for labels that the model has no output for."""
    if batch.labels is None:
        return
    labels = batch.labels.cpu()
    is_wrong = (labels < 0) | (labels >= num_classes)
    if is_wrong.any():
        values, index = list_some(labels[is_wrong].unique().tolist()), list_some(batch.index[is_wrong].tolist())
        raise LabelError(
            f"The model has {num_classes} classes, so labels must be 0 to {num_classes - 1}; found {values} at index "
            f"{index}. Number the classes from 0, or give the model more outputs."
        )
