"""Augmented images: what the drawn numbers say, within the settings, and drawn only if they are wanted."""

import torch

from rarefish.training.augment import augment, draw_moves, move
from rarefish.training.config import Training
from rarefish.training.loop import draw_epoch


def test_moved_images_show_what_the_moves_say() -> None:
    image = torch.arange(6.0).reshape(1, 1, 2, 3)
    moves = torch.tensor([[0, 0, 0], [1, 0, 0], [0, -1, 0], [0, 1, 1]])
    told = move(image.expand(4, 1, 2, 3), moves)[:, 0].tolist()
    assert told == [
        [[0, 1, 2], [3, 4, 5]],
        [[3, 4, 5], [3, 4, 5]],
        [[0, 0, 1], [3, 3, 4]],
        [[1, 0, 0], [4, 3, 3]],
    ]


def test_moves_stay_within_their_settings_and_are_drawn_only_if_wanted() -> None:
    order, none = draw_epoch(torch.arange(200), Training(), torch.Generator().manual_seed(0))
    assert order.sort().values.tolist() == list(range(200)) and none.shape == (200, 0)
    _, moves = draw_epoch(torch.arange(200), Training(shift=2, flip=True), torch.Generator().manual_seed(0))
    assert moves[:, :2].unique().tolist() == [-2, -1, 0, 1, 2] and moves[:, 2].unique().tolist() == [0, 1]
    _, moves = draw_epoch(torch.arange(200), Training(shift=2), torch.Generator().manual_seed(0))
    assert not moves[:, 2].any()


def test_variations_are_small_and_turn_nothing_where_they_must_not() -> None:
    across = torch.linspace(0, 1, 32).repeat(32, 1).expand(64, 1, 32, 32)
    generator = torch.Generator().manual_seed(0)

    def vary(images: torch.Tensor, flip: bool) -> torch.Tensor:
        training = Training(zoom=0.15, flip=flip)
        return augment(images, draw_moves([len(images)], training, generator), training)

    kept, turned = vary(across, False), vary(across, True)
    is_rising = (kept[..., -1] > kept[..., 0]).flatten(1).all(dim=1)
    assert is_rising.all() and float((kept - across).abs().max()) < 0.2 and not torch.equal(kept[0], kept[1])
    assert 16 < int((turned[..., -1] > turned[..., 0]).flatten(1).all(dim=1).sum()) < 48
    plain = torch.full((2, 3, 5, 7), 0.25)
    assert torch.allclose(vary(plain, True), plain), "nothing comes in from outside"
