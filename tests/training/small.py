"""Small data, networks and settings for tests of training."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.training.config import FINE_TUNING, Training, TrainingResult
from rarefish.training.loop import fit

SMALL = replace(FINE_TUNING, epochs=4, batch_size=8, lr=0.01)


def blobs(count: int, seed: int = 0) -> TensorDataset:
    labels = torch.arange(count) % 3
    images = torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed)) * 0.3
    return TensorDataset(images + labels[:, None, None, None] - 1, labels)


def net(size: int = 6, num_classes: int = 3) -> nn.Module:
    """Dropout and BatchNorm, which draw and remember."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)]
        return nn.Sequential(*layers, nn.Linear(6 * (size - 2) ** 2, num_classes))


def fine_tune(model: nn.Module, data: Any, validation: Any, training: Training = SMALL, **more: Any) -> TrainingResult:
    return fit(model, data, None, training, torch.Generator().manual_seed(3), validation=validation, **more)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
