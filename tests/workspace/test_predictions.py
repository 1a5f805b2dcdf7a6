"""Class probabilities of workspace images, and the pool's class mix estimated from them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rarefish.data.reader import Reader
from rarefish.errors import DataError
from rarefish.models.preprocessing import Input
from rarefish.workspace.images import open_images
from rarefish.workspace.predictions import class_counts, class_probabilities, pool_mix, top_classes
from tests.workspaces import make_workspace

READER = Reader(batch_size=4, progress=False)


class FirstPixel(nn.Module):
    """Logits that depend on one pixel, so that every image has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, images: Tensor) -> Tensor:
        pixel = images[:, 0, 0, 0] * self.scale
        return torch.stack([pixel, -pixel, torch.zeros_like(pixel)], dim=1)


def test_probabilities_are_those_of_the_model_in_the_order_of_the_rows(tmp_path: Path) -> None:
    pool = open_images(make_workspace(tmp_path, pool=7, trusted=1), "pool", Input((8, 8)))
    model = FirstPixel().train()
    rows = [5, 0, 6, 2, 1]
    expected = model(torch.stack([pool[row][0] for row in rows])).softmax(dim=1)
    assert torch.allclose(class_probabilities(model, pool, rows, READER), expected) and model.training


def test_unreadable_images_are_left_out_where_a_dict_is_given(tmp_path: Path) -> None:
    pool = open_images(make_workspace(tmp_path, pool=3, trusted=1), "pool", Input((8, 8)))
    pool.files[1].unlink()
    lost: dict[int, str] = {}
    assert class_probabilities(FirstPixel(), pool, [0, 1, 2], READER, unreadable=lost).shape == (2, 3)
    assert list(lost) == [1] and "cannot be read" in lost[1]
    with pytest.raises(DataError, match="None of 1 images can be read"):
        class_probabilities(FirstPixel(), pool, [1], READER, unreadable={})


def test_likeliest_classes_and_counts(tmp_path: Path) -> None:
    assert top_classes(torch.tensor([0.1, 0.65004, 0.25])) == ((1, 0.65), (2, 0.25), (0, 0.1))
    assert len(top_classes(torch.full((20,), 0.05))) == 5
    trusted = open_images(make_workspace(tmp_path, pool=1, trusted=2), "validation", Input((8, 8)))
    assert class_counts(trusted, 4) == [2, 2, 2, 0]


def test_the_mix_of_a_pool_moves_from_validation_towards_what_the_model_says(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=2)
    pool, trusted = (open_images(store, part, Input((8, 8))) for part in ("pool", "validation"))
    model = FirstPixel()
    model.scale.data.zero_()
    assert pool_mix(model, pool, trusted, READER) == pytest.approx([1 / 3] * 3, abs=1e-3)
    model.forward = lambda images: torch.tensor([5.0, 0.0, 0.0]).expand(len(images), 3)  # type: ignore[method-assign]
    mix = pool_mix(model, pool, trusted, READER)
    assert sum(mix) == pytest.approx(1, abs=1e-4) and mix[0] > 0.9
