"""Batches out of any data set: bare images, (image, label) pairs or dictionaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from rarefish.errors import ArgumentError, DataError, LabelError, list_some
from rarefish.progress import track

IMAGE_KEYS = ("pixel_values", "image", "img", "images")
LABEL_KEYS = ("label", "labels", "fine_label", "target")


@runtime_checkable
class Data(Protocol):
    """A map-style data set: it has a length, and item i is an image or begins with one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Batch:
    """Some images of a data set, their positions in it and, where asked for, their labels."""

    index: Tensor
    images: Tensor
    labels: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How to read: the same for validation set and pool."""

    batch_size: int = 256
    num_workers: int = 0
    collate: Any = None
    """Makes a batch of the data set's items, as for a DataLoader; None stacks images of one size."""
    progress: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.num_workers < 0:
            raise ArgumentError(
                f"batch_size must be at least 1 and num_workers at least 0, not {self.batch_size} and "
                f"{self.num_workers}."
            )

    def read(
        self, data: Data, index: Sequence[int] | None = None, *, title: str = "", with_labels: bool = False
    ) -> Iterator[Batch]:
        """The images at `index` (all, if None), in order."""
        index = range(len(data)) if index is None else index
        loader = DataLoader(
            _Numbered(data),  # pyright: ignore[reportArgumentType]
            batch_size=self.batch_size,
            sampler=index,  # pyright: ignore[reportArgumentType]
            num_workers=self.num_workers,
            collate_fn=_Collate(self.collate, with_labels),
            pin_memory=torch.cuda.is_available(),
        )
        yield from track(loader, total=len(index), title=title, step=lambda b: len(b.index), shown=self.progress)

    def first_images(self, data: Data) -> Tensor:
        """The first image, as a batch of one."""
        return _Collate(self.collate, False)([(0, data[0])]).images


class Relabeled:
    """A data set with labels that somebody else gave."""

    def __init__(self, data: Data, labels: Tensor) -> None:
        if labels.shape != (len(data),) or labels.is_floating_point():
            raise ArgumentError(f"labels must be {len(data)} whole numbers, one an image, not {tuple(labels.shape)}.")
        self.data, self.labels = data, labels.cpu()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return image_of(self.data[index]), int(self.labels[index])


@dataclass(frozen=True)
class _Numbered:
    """Each item with its index, so that a batch knows where its images came from."""

    data: Data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.data[index]


@dataclass(frozen=True)
class _Collate:
    collate: Callable[[list[Any]], Any] | None
    with_labels: bool

    def __call__(self, numbered: list[tuple[int, Any]]) -> Batch:
        index = torch.tensor([i for i, _ in numbered])
        items = [item for _, item in numbered]
        if self.collate:
            together = self.collate(items)
            images, labels = image_of(together), label_of(together) if self.with_labels else None
        else:
            images = _stack([image_of(item) for item in items], index)
            labels = torch.tensor([_label_at(i, item) for i, item in numbered]) if self.with_labels else None
        return Batch(index, torch.as_tensor(images), labels if labels is None else torch.as_tensor(labels).long())


def image_of(item: Any) -> Any:
    """The image in a data set's item (or the images in a batch of them)."""
    if isinstance(item, Mapping):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise DataError(f"Found no image in an item with {', '.join(map(str, item))}; call it 'image'.")
        return item[key]
    return item[0] if isinstance(item, (tuple, list)) else item


def label_of(item: Any) -> Any:
    """The label in a data set's item (or the labels in a batch of them); None where there is none."""
    if isinstance(item, Mapping):
        return next((item[key] for key in LABEL_KEYS if key in item), None)
    return item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None


def read_labels(data: Data) -> Tensor:
    """Every label of a data set, in order; from its `targets` or `tensors` where it has them, else item by item."""
    known = getattr(data, "targets", None)
    if known is None and len(getattr(data, "tensors", ())) > 1:
        known = data.tensors[1]  # pyright: ignore[reportAttributeAccessIssue]
    if known is not None and len(known) == len(data):
        return torch.as_tensor(known).long()
    return torch.tensor([_label_at(i, data[i]) for i in range(len(data))])


def _label_at(index: int, item: Any) -> int:
    label = label_of(item)
    if label is None:
        raise LabelError(f"Item {index} has no label, and these settings need one. Give (image, label) items.")
    try:
        return int(label)
    except (TypeError, ValueError) as error:
        raise LabelError(f"The label of item {index} is {label!r}, not a class number from 0.") from error


def _stack(images: list[Any], index: Tensor) -> Tensor:
    if not all(isinstance(image, Tensor) or hasattr(image, "__array_interface__") for image in images[:1]) or hasattr(
        images[0], "getbands"
    ):
        raise DataError(
            f"Image {int(index[0])} is a {type(images[0]).__name__}, not a tensor. Add a transform to the data set "
            "that makes it one, such as torchvision's ToTensor()."
        )
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise DataError(
            f"Images {int(index[0])} to {int(index[-1])} differ in shape: {list_some(sorted(shapes), 3)}. Resize them "
            "in the data set's transform, or give collate= a function that makes a batch of them."
        )
    return default_collate(images)
