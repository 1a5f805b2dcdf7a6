"""Small networks of the experiments, each with the layers it is described at."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


class LeNet(nn.Module):
    """The paper's network for 28×28 digits; its layers end with their ReLU, so they are described after it."""

    default_layers = ("conv1", "conv2", "fc1")

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(1, 10, kernel_size=5), nn.MaxPool2d(2), nn.ReLU())
        self.conv2 = nn.Sequential(nn.Conv2d(10, 20, kernel_size=5), nn.MaxPool2d(2), nn.ReLU())
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(320, 50), nn.ReLU())
        self.fc2 = nn.Linear(50, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.conv2(self.conv1(images))))


def classifier_of(model: nn.Module) -> tuple[str, nn.Linear]:
    """Name and module of the last linear layer."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert linear, "a model with a linear classifier"
    return linear[-1]


def with_new_classifier(model: Network, num_classes: int, generator: torch.Generator) -> Network:
    """A copy of the model whose last linear layer is new: drawn from the generator, `num_classes` wide."""
    fresh = copy.deepcopy(model)
    name, old = classifier_of(fresh)
    new = nn.Linear(old.in_features, num_classes).to(old.weight)
    _draw_linear(new, generator)
    parent, _, own = name.rpartition(".")
    setattr(fresh.get_submodule(parent), own, new)
    return fresh


def draw_weights(model: Network, generator: torch.Generator) -> Network:
    """The model itself, its linear and convolutional weights drawn anew from the generator (torch's own ranges)."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            _draw_linear(module, generator)
    return model


def _draw_linear(module: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    bound = module.weight[0].numel() ** -0.5
    with torch.no_grad():
        for parameter in (module.weight, module.bias):
            if parameter is not None:
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.copy_((2 * drawn - 1) * bound)
