"""Boxes are cut at the edges of their image, and boxes that cannot be drawn are named."""

import math

import pytest

from rarefish.errors import ArgumentError
from rarefish.exchange.boxes import Box, BoxedImage, clip_boxes


def test_boxes_are_cut_at_the_edges() -> None:
    image = BoxedImage("a.png", 20, 10, (Box(-3, -2, 30, 40, "cat", 0.5), Box(1, 2, 3, 4, "cat")))
    assert clip_boxes(image, ["cat"]).boxes == (Box(0, 0, 20, 10, "cat", 0.5), Box(1, 2, 3, 4, "cat"))
    assert (Box(1, 2, 4, 8, "cat").width, Box(1, 2, 4, 8, "cat").height) == (3, 6)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (Box(0, 0, 5, 5, "cats"), "a.png has a box of the class 'cats'. Did you mean cat"),
        (Box(5, 0, 5, 5, "cat"), r"20 x 10 pixels, but a box from \(5, 0\) to \(5, 5\)"),
        (Box(0, 0, 5, -1, "cat"), "a box from"),
        (Box(21, 0, 25, 5, "cat"), "leave out boxes outside the image"),
        (Box(0, 11, 5, 15, "cat"), "leave out boxes outside the image"),
        (Box(0, 0, math.inf, 5, "cat"), "a box from"),
        (Box(math.nan, 0, 5, 5, "cat"), "a box from"),
    ],
)
def test_boxes_that_cannot_be_drawn_are_named(box: Box, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        clip_boxes(BoxedImage("a.png", 20, 10, (box,)), ["cat", "dog"])
