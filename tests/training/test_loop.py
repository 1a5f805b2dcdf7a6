"""Training learns, repeats itself by seed, and its score is counted right."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.data.lazy_images import Stored
from rarefish.errors import ArgumentError
from rarefish.training.evaluation import evaluate
from rarefish.training.loop import Training, draw_epoch, fit, in_batches, move, read_images


def blobs(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % 3
    images = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.3
    return images + labels[:, None, None, None] - 1, labels


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def test_learns_and_repeats_itself() -> None:
    images, labels = blobs()
    runs = []
    for _ in range(2):
        net = small()
        fit(net, images, labels, Training(epochs=40), torch.Generator().manual_seed(1))
        runs.append(net)
    assert evaluate(runs[0], TensorDataset(images, labels), 3).accuracy > 0.95
    assert all(torch.equal(a, b) for a, b in zip(runs[0].parameters(), runs[1].parameters(), strict=True))
    assert not runs[0].training


def test_the_learning_rate_falls_as_the_settings_say() -> None:
    """One weight, a constant gradient of 1 and no momentum: the weight tells the sum of learning rates."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Logits (-40, 40) and label 0: the loss rises by 1 with every step of the weight, whatever its value.
            return torch.stack([-40 - self.weight * x[:, 0], torch.full((len(x),), 40.0)], dim=1)

    net, told = One(), []
    settings = Training(epochs=5, batch_size=1, lr=1.0, momentum=0.0, gamma=0.1, step_size=2)
    zeros = torch.zeros(1, dtype=torch.long)
    fit(net, torch.ones(1, 1), zeros, settings, torch.Generator(), on_epoch=lambda model: told.append(model.training))
    assert net.weight.item() == pytest.approx(-(1 + 1 + 0.1 + 0.1 + 0.01), abs=1e-5)
    assert told == [False] * 5


def test_read_images_keeps_the_order() -> None:
    images, labels = blobs(9)
    assert torch.equal(read_images(TensorDataset(images, labels), [8, 0, 3]), images[[8, 0, 3]])


def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match="lr > 0"):
        Training(lr=0.0)


def rates(**settings: object) -> list[float]:
    training = Training(epochs=10, lr=1.0, **settings)  # pyright: ignore[reportArgumentType]
    return [training.lr_at(epoch) for epoch in range(10)]


def test_a_cosine_rises_once_and_falls_to_nothing() -> None:
    values = rates(cosine=True)
    assert values[0] == pytest.approx(0.5)
    assert values[1:] == sorted(values[1:], reverse=True)
    assert values[1] > 0.99 and 0 < values[-1] < 0.01


def test_the_rate_falls_after_given_epochs() -> None:
    assert rates(milestones=(3, 7)) == pytest.approx([1] * 3 + [0.1] * 4 + [0.01] * 3)


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
    order, none = draw_epoch(200, Training(), torch.Generator().manual_seed(0))
    assert order.sort().values.tolist() == list(range(200)) and none.shape == (200, 0)
    _, moves = draw_epoch(200, Training(shift=2, flip=True), torch.Generator().manual_seed(0))
    assert moves[:, :2].unique().tolist() == [-2, -1, 0, 1, 2] and moves[:, 2].unique().tolist() == [0, 1]
    _, moves = draw_epoch(200, Training(shift=2), torch.Generator().manual_seed(0))
    assert not moves[:, 2].any()


def test_weights_are_pulled_to_zero_and_biases_are_not() -> None:
    net = small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    silent = torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        net.get_parameter("3.bias").copy_(torch.tensor([50.0, 0, 0]))
    fit(net, *silent, Training(epochs=1, batch_size=4, lr=0.1, weight_decay=0.5), torch.Generator())
    torch.testing.assert_close(net.state_dict()["1.weight"], before["1.weight"] * 0.95)
    torch.testing.assert_close(net.state_dict()["1.bias"], before["1.bias"])


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (9, 5, [5, 4]),
        (10, 5, [5, 5]),
        (11, 5, [5, 6]),
        (1, 5, [1]),
        (0, 5, []),
        (130, 32, [32, 32, 32, 34]),
        (132, 32, [32, 32, 32, 32, 4]),
        (3, 32, [3]),
    ],
)
def test_no_batch_is_a_little_rest(count: int, size: int, sizes: list[int]) -> None:
    assert [len(part) for part in in_batches(torch.arange(count), Training(batch_size=size))] == sizes


def test_smooth_labels_and_low_precision_are_learned_from() -> None:
    images, labels = blobs()
    net = small()
    fit(net, images, labels, Training(epochs=40, label_smoothing=0.1, precision="bfloat16"), torch.Generator())
    assert evaluate(net, TensorDataset(images, labels), 3).accuracy > 0.95
    assert net(images).softmax(dim=1).amax(dim=1).mean() < 0.97  # a label of 0.93 is aimed at, not of 1


@pytest.mark.parametrize("settings", [{"shift": -1}, {"label_smoothing": 1.0}, {"precision": "float8"}])
def test_bad_modern_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        Training(**settings)  # pyright: ignore[reportArgumentType]


class KilledError(Exception):
    """Stands for the end of a process."""


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_training_goes_on_from_its_last_epoch(is_stored: bool, tmp_path: Path) -> None:
    images, labels = blobs()
    source = Stored(TensorDataset(images), range(60)) if is_stored else images
    settings = Training(epochs=6, batch_size=7, momentum=0.9, step_size=2, shift=1, flip=True)
    told: list[nn.Module] = []

    def kill(model: nn.Module) -> None:
        told.append(model)
        if len(told) == 4:
            raise KilledError

    whole, begun, again, other = (small() for _ in range(4))
    path = tmp_path / "epoch.pt"
    fit(whole, source, labels, settings, torch.Generator().manual_seed(1))
    with pytest.raises(KilledError):
        fit(begun, source, labels, settings, torch.Generator().manual_seed(1), on_epoch=kill, checkpoint=path)
    chance = torch.Generator().manual_seed(1)
    fit(again, source, labels, settings, chance, on_epoch=told.append, checkpoint=path)
    assert len(told) == 6  # the four before the kill, and the two that were left
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    # What is finished is not trained again; what would be another training does not take it up.
    fit(other, source, labels, settings, torch.Generator().manual_seed(1), on_epoch=told.append, checkpoint=path)
    assert len(told) == 6 and torch.equal(other.state_dict()["1.weight"], whole.state_dict()["1.weight"])
    fit(small(), source, labels, settings, torch.Generator().manual_seed(2), on_epoch=told.append, checkpoint=path)
    assert len(told) == 12
