"""Optimizers and their steps."""

from functools import partial

import pytest
import torch
from torch import nn

from rarefish.errors import ModelError
from rarefish.training.config import Training
from rarefish.training.optimizers import make_optimizer, take_sgd_step, take_step, weight_groups

BATCHES = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))
SETTINGS = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.7, "weight_decay": 0.3}


def make_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def loss_of(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return net(batch).square().sum()


def test_only_weights_decay() -> None:
    decayed, others = weight_groups(make_net(), 0.3)
    assert [weight.ndim for weight in decayed["params"]] == [2, 2] and decayed["weight_decay"] == 0.3
    assert [weight.ndim for weight in others["params"]] == [1] * 4 and others["weight_decay"] == 0.0


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(ModelError, match="No parameter of the model requires a gradient"):
        make_optimizer(make_net().requires_grad_(False), Training())


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_settings_reach_the_optimizer(name: str) -> None:
    optimizer = make_optimizer(make_net(), Training(optimizer=name, lr=0.2, momentum=0.6, nesterov=True))
    assert type(optimizer) is {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.2 and (name == "adamw" or (group["momentum"] == 0.6 and group["nesterov"]))


def test_a_step_starts_from_zero_gradients() -> None:
    """The gradient of a linear loss is constant, so each step subtracts the same: nothing is accumulated."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    take = partial(take_step, torch.optim.SGD([weight], lr=0.5))
    for _ in range(3):
        take((weight * torch.tensor([2.0, -4.0])).sum())
    assert weight.tolist() == [-2.0, 8.0]


def test_a_written_out_step_is_that_of_torch() -> None:
    net, twin = make_net(), make_net()
    optimizer = make_optimizer(twin, Training(**SETTINGS))
    groups = weight_groups(net, SETTINGS["weight_decay"])
    weights = [weight for group in groups for weight in group["params"]]
    decays = [group["weight_decay"] for group in groups for _ in group["params"]]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for batch in BATCHES:
        take_step(optimizer, loss_of(twin, batch))
        gradients = torch.autograd.grad(loss_of(net, batch), weights)
        take_sgd_step(weights, velocities, gradients, decays, SETTINGS["momentum"], torch.tensor(SETTINGS["lr"]))
    for own, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other)
