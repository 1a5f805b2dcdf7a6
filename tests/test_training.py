"""Training learns, repeats itself by seed, and its score is counted right."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.errors import ArgumentError
from rarefish.training import Training, evaluate, fit, read_images


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
    settings = Training(epochs=5, batch_size=1, lr=1.0, momentum=0.0, decay=0.1, decay_every=2)
    zeros = torch.zeros(1, dtype=torch.long)
    fit(net, torch.ones(1, 1), zeros, settings, torch.Generator(), on_epoch=lambda model: told.append(model.training))
    assert net.weight.item() == pytest.approx(-(1 + 1 + 0.1 + 0.1 + 0.01), abs=1e-5)
    assert told == [False] * 5


def test_recall_is_counted_per_class() -> None:
    class Says(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(x[:, 0].long(), 4).float()

    answers, truth = torch.tensor([[0], [0], [1], [2], [1]]), torch.tensor([0, 1, 1, 2, 2])
    score = evaluate(Says(), TensorDataset(answers, truth), 4)
    assert score.accuracy == pytest.approx(3 / 5)
    assert score.recall[:3].tolist() == [1.0, 0.5, 0.5] and score.recall[3].isnan()
    assert score.prediction.tolist() == [0, 0, 1, 2, 1]


def test_read_images_keeps_the_order() -> None:
    images, labels = blobs(9)
    assert torch.equal(read_images(TensorDataset(images, labels), [8, 0, 3]), images[[8, 0, 3]])


def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match="lr > 0"):
        Training(lr=0.0)
