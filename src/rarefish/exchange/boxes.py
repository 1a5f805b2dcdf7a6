"""Images with boxes around objects, which annotators correct in another tool instead of drawing them."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from rarefish.errors import ArgumentError, nearest


@dataclass(frozen=True)
class Box:
    """A rectangle around an object, by its edges in pixels."""

    left: float | int
    top: float | int
    right: float | int
    bottom: float | int
    name: str
    """Name of the class."""
    score: float | None = None
    """The probability that the model gives to the class."""

    @property
    def width(self) -> float | int:
        return self.right - self.left

    @property
    def height(self) -> float | int:
        return self.bottom - self.top


@dataclass(frozen=True)
class BoxedImage:
    """An image file and the boxes in it."""

    path: str
    """Path as the other tool knows it: relative to the folder of the images."""
    width: int
    height: int
    boxes: tuple[Box, ...] = ()


def clip_boxes(image: BoxedImage, classes: Collection[str]) -> BoxedImage:
    """Returns the image with its boxes cut at its edges; raises ArgumentError for a box that cannot be drawn."""
    return replace(image, boxes=tuple(_clipped(box, image, classes) for box in image.boxes))


def _clipped(box: Box, image: BoxedImage, classes: Collection[str]) -> Box:
    if box.name not in classes:
        raise ArgumentError(f"{image.path} has a box of the class {box.name!r}. {nearest(box.name, classes)}")
    edges = (box.left, box.top, box.right, box.bottom)
    left, right = (min(max(edge, 0), image.width) for edge in (box.left, box.right))
    top, bottom = (min(max(edge, 0), image.height) for edge in (box.top, box.bottom))
    if not all(map(math.isfinite, edges)) or left >= right or top >= bottom:
        raise ArgumentError(
            f"{image.path} has {image.width} x {image.height} pixels, but a box from ({box.left:g}, {box.top:g}) to "
            f"({box.right:g}, {box.bottom:g}). Give left, top, right and bottom edges in pixels, and leave out boxes "
            "outside the image."
        )
    return replace(box, left=float(left), top=float(top), right=float(right), bottom=float(bottom))
