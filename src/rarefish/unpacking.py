"""What an item of a data set holds: an image and, it may be, a label."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from rarefish.errors import DataError, LabelError, list_some

IMAGE_KEYS = ("pixel_values", "image", "img", "images")
LABEL_KEYS = ("label", "labels", "fine_label", "target")


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


def label_at(index: int, item: Any) -> int:
    """The class number in the item at that index; complains where there is none."""
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
    """Labels of a batch, of shape (N,), also out of (N, 1); complains about others and about fractions."""
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
    """Images of one size as one tensor; complains about others."""
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
            "in the data set's transform, or give collate= a function that makes a batch of them."
        )
    return default_collate(images)
