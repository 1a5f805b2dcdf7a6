"""Tensors as pictures."""

import math

import numpy as np
import pytest
import torch

from rarefish.data.visualize import draw_pairs, rotate, to_picture


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (3, 5, 7), (9, 5, 7)])
def test_any_image_becomes_a_picture(shape: tuple[int, ...]) -> None:
    picture = to_picture(torch.randn(shape))
    assert picture.size == (7, 5) and picture.mode == "RGB"
    assert np.asarray(picture).max() == 255 and np.asarray(picture).min() == 0


def test_a_flat_image_is_no_error_and_small_ones_are_enlarged() -> None:
    assert to_picture(torch.full((1, 4, 4), 3.0)).getpixel((0, 0)) == (0, 0, 0)
    assert to_picture(torch.zeros(1, 4, 6), smallest=10).size == (18, 12)


def test_colours_stay() -> None:
    red = torch.zeros(3, 2, 2)
    red[0] = 1
    assert to_picture(red).getpixel((1, 1)) == (255, 0, 0)


def test_a_sheet_holds_every_pair_under_each_other() -> None:
    white, black = torch.eye(28), 1 - torch.eye(28)
    one, many = (draw_pairs([(white, black)] * n, ["caption"] * n) for n in (1, 20))
    assert one.width >= 112 and many.height > 2 * one.height


def test_rotation_turns_about_the_middle() -> None:
    square = torch.arange(9.0).reshape(1, 1, 3, 3)
    quarter = rotate(square, torch.tensor([math.pi / 2]))
    torch.testing.assert_close(quarter, square.rot90(1, (-2, -1)), atol=1e-5, rtol=0)
    oblong = torch.zeros(1, 1, 5, 11)
    oblong[0, 0, 2, 3:8] = 1
    upright = rotate(oblong, torch.tensor([math.pi / 2]))
    torch.testing.assert_close(upright[0, 0, :, 5], torch.ones(5), atol=1e-4, rtol=0)
