"""Read batches from any map-style dataset, whose items are images, (image, label) pairs or dictionaries."""

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
    """Returns the image in an item of a dataset, or the images in a collated batch."""
    if isinstance(item, Mapping):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise DataError(f"An item with the keys {', '.join(map(str, item))} has no image. Use the key 'image'.")
        return item[key]
    return item[0] if isinstance(item, (tuple, list)) else item


def label_of(item: Any) -> Any:
    """Returns the label in an item of a dataset, or the labels in a collated batch, or None if there is none."""
    if isinstance(item, Mapping):
        return next((item[key] for key in LABEL_KEYS if key in item), None)
    return item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None


def label_at(index: int, item: Any) -> int:
    """Returns the class number in an item; raises LabelError with the index if there is none."""
    label = label_of(item)
    if label is None:
        raise LabelError(f"Item {index} has no label, but these settings need one. Give (image, label) items.")
    try:
        number = int(label)
    except (TypeError, ValueError):
        number = None
    if number is None or number != label:
        raise LabelError(f"The label of item {index} is {label!r}, not a class number from 0.")
    return number


def flat_labels(labels: Tensor, index: Tensor) -> Tensor:
    """Returns a batch of labels as (N,), given as (N,) or (N, 1); raises LabelError for other shapes and fractions."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or len(flat) != len(index):
        raise LabelError(
            f"The labels of {len(index)} images have the shape {tuple(labels.shape)}. Give one class number per image, "
            "for example with labels.argmax(dim=1) if they are one-hot."
        )
    if flat.is_floating_point() and len(flat) and (wrong := flat != flat.round()).any():
        place = int(wrong.nonzero()[0])
        raise LabelError(f"The label of item {int(index[place])} is {float(flat[place])}, not a class number from 0.")
    return flat.long()


def stack(images: list[Any], index: Tensor) -> Tensor:
    """Returns the images as one tensor; raises DataError unless all are tensors or arrays of the same shape."""
    for i, image in zip(index.tolist(), images, strict=True):
        if not isinstance(image, (Tensor, np.ndarray)):
            raise DataError(
                f"Image {i} is a {type(image).__name__}, not a tensor. Add a transform to the dataset that converts "
                "it, such as torchvision's ToTensor()."
            )
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise DataError(
            f"Images {int(index[0])} to {int(index[-1])} differ in shape: {list_some(sorted(shapes), 3)}. Resize them "
            "in the dataset's transform, or pass a function that makes a batch of them as collate_fn=."
        )
    return default_collate(images)


UNREADABLE = (OSError, SyntaxError, DataError)
"""Exceptions that datasets raise for a damaged or missing file, including Pillow's."""


@runtime_checkable
class Data(Protocol):
    """A map-style dataset: it has a length, and its items are images or contain one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class InMemory(Protocol):
    """A dataset in memory that returns many images at once, scaled on access."""

    @property
    def targets(self) -> Any:
        """The labels of all items, or None if they have no labels."""
        ...

    def take(self, rows: Tensor) -> Tensor:
        """Returns the images at the given positions."""
        ...


@runtime_checkable
class Fingerprinted(Protocol):
    """A dataset that can detect changes without reading all of its items."""

    def fingerprints(self, *, with_contents: bool = False) -> Mapping[str, str]:
        """Returns hashes by name of everything that determines the items, such as files, labels and preprocessing.

        With `with_contents`, files are hashed by content and not only by size and modification time.
        """
        ...


@runtime_checkable
class Identified(Protocol):
    """A dataset that can identify its images without decoding them."""

    def content_ids(self, rows: Sequence[int]) -> list[str]:
        """Returns a hash of the content of each of these images, which is empty if it cannot be read."""
        ...


def lies_in_memory(data: object) -> bool:
    """Returns whether the images are in memory, so that many can be accessed at once."""
    return isinstance(data, (TensorDataset, InMemory))


def labels_of(data: object) -> Tensor | None:
    """Returns all labels without reading any image, or None if the dataset has no list of labels."""
    own = data.tensors[1] if isinstance(data, TensorDataset) and len(data.tensors) > 1 else None
    own = getattr(data, "targets", own)
    if own is None:
        return None
    labels = torch.as_tensor(own)
    return flat_labels(labels, torch.arange(len(labels))).cpu()


@dataclass(frozen=True)
class Batch:
    """Some images of a dataset, their positions in it and, if requested, their labels."""

    index: Tensor
    images: Tensor
    labels: Tensor | None
    unreadable: dict[int, str] = field(default_factory=dict)
    """Positions of images that could not be read, with the reasons."""

    def pin_memory(self) -> "Batch":
        """Returns the batch in pinned memory, from which a GPU can copy asynchronously; called by the DataLoader."""
        return self if self.images.is_cuda else replace(self, images=self.images.pin_memory())


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Settings for reading the validation set and the pool."""

    batch_size: int = 256
    num_workers: int = 0
    collate_fn: Any = None
    """Function that makes a batch from a list of items, as for a DataLoader; None stacks images of the same size."""
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
        """Yields the images at `index` (all if None) in batches, in order.

        Args:
            data: The dataset to read.
            index: The positions of the images.
            title: The title of the progress bar.
            labels: True to return the dataset's labels, or a tensor of labels to use instead, one per item.
            unreadable: Collects images that cannot be read, with the reasons. If None, such images raise DataError.
            sizes: The size of each batch, instead of `batch_size`. With it, a batch is yielded even if none of its
                images can be read.
        """
        index = range(len(data)) if index is None else index
        if (type(data) is TensorDataset or isinstance(data, InMemory)) and self.collate_fn is None:
            batches: Iterable[Batch | RarefishError] = _slices(
                data, index, sizes or int(self.batch_size), labels is True
            )
        else:
            batches = self._load(data, index, labels is True, sizes)
        for batch in track(
            batches, total=len(index), title=title, step=_num_images, shown=self.progress, unit="images"
        ):
            if isinstance(batch, RarefishError):
                raise batch
            if batch.unreadable and unreadable is None:
                i, why = next(iter(batch.unreadable.items()))
                raise DataError(f"Cannot read image {i}: {why}")
            if unreadable is not None:
                unreadable.update(batch.unreadable)
            if not len(batch.index) and not sizes:
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
        """Returns the first image as a batch of one."""
        return self.one(data, 0)

    def one(self, data: Data, index: int) -> Tensor:
        """Returns the image at `index` as a batch of one, collated like any other batch."""
        return self.batch_of(index, data[index])

    def batch_of(self, index: int, item: Any) -> Tensor:
        """Returns the image of an item that has already been read, as a batch of one."""
        return _Collate(self.collate_fn, False)([(index, item)]).images


def _slices(
    data: TensorDataset | InMemory, index: Sequence[int], size: int | Sequence[int], with_labels: bool
) -> Iterator[Batch]:
    """Yields batches of images that are in memory (or on a GPU) by indexing tensors instead of reading items."""
    unreadable: Mapping[int, str] = {}
    if isinstance(data, InMemory):
        take, known = data.take, data.targets
        unreadable = getattr(data, "unreadable", unreadable)
    else:
        images, *rest = data.tensors
        take, known = (lambda rows: images[rows.to(images.device)]), rest[0] if rest else None
    if with_labels and known is None:
        raise LabelError(f"Item {next(iter(index), 0)} has no label, but these settings need one. Give two tensors.")
    truth = torch.as_tensor(known) if with_labels else None
    for rows in to_rows(index, size):
        bad = {row: unreadable[row] for row in rows.tolist() if row in unreadable} if unreadable else {}
        if bad:
            rows = rows[[row not in bad for row in rows.tolist()]]
        labels = None if truth is None else flat_labels(truth[rows.to(truth.device)], rows)
        yield Batch(rows, take(rows), labels, bad)


def to_rows(index: Sequence[int], size: int | Sequence[int]) -> Iterator[Tensor]:
    """Yields the positions in `index` as tensors of the given size or sizes, without a copy of the whole sequence."""
    ends = range(size, len(index) + size, size) if isinstance(size, int) else accumulate(size)
    first = 0
    for end in ends:
        some = index[first:end]
        first = end
        yield torch.arange(some.start, some.stop, some.step) if isinstance(some, range) else torch.tensor(list(some))


@dataclass(frozen=True)
class Unreadable:
    """A placeholder for an item that could not be read."""

    why: str


@dataclass(frozen=True)
class _Numbered:
    """A dataset that returns each item with its index, so that batches know the positions of their images."""

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
        """Returns the batch or the error; an error raised in a worker process would arrive with pages of traceback."""
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
                raise LabelError("collate_fn= returned a batch without labels, but these settings need them.")
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
    """Raises LabelError for labels for which the model has no output."""
    if batch.labels is None:
        return
    labels = batch.labels.cpu()
    is_wrong = (labels < 0) | (labels >= num_classes)
    if is_wrong.any():
        values, index = list_some(labels[is_wrong].unique().tolist()), list_some(batch.index[is_wrong].tolist())
        raise LabelError(
            f"The model has {num_classes} classes, so labels must be 0 to {num_classes - 1}, but found {values} at "
            f"index {index}. Number the classes from 0, or give the model more outputs."
        )
