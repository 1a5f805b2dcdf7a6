"""Create an optimizer from training settings, and take optimizer steps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.errors import ModelError
from rarefish.training.config import Training

Tensors = list[Tensor] | tuple[Tensor, ...]


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Returns the optimizer with these settings for all parameters that require a gradient."""
    groups = weight_groups(model, training.weight_decay)
    if not groups:
        raise ModelError(
            "No parameter of the model requires a gradient. Call requires_grad_() on those that should be trained."
        )
    if training.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=training.lr)
    return torch.optim.SGD(groups, lr=training.lr, momentum=training.momentum, nesterov=training.nesterov)


def weight_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns parameter groups for an optimizer: weights with weight decay; biases and normalization layers without."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [weight for weight in trainable if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [bias for bias in trainable if bias.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def take_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Takes one step of the optimizer on the gradients of the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


@torch.no_grad()
def take_sgd_step(
    weights: Tensors,
    velocities: Tensors,
    gradients: Tensors,
    weight_decays: Sequence[float],
    momentum: float,
    lr: Tensor,
) -> None:
    """Takes one step of SGD in place, as `torch.optim.SGD` does, for steps that are recorded as CUDA graphs."""
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, gradients)
    for velocity, weight, decay in zip(velocities, weights, weight_decays, strict=True):
        if decay:
            velocity.add_(weight, alpha=decay)
    torch._foreach_sub_(weights, torch._foreach_mul(velocities, lr))
