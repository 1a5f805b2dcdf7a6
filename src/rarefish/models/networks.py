"""The networks of the experiments, each with its default layers for descriptors."""

import copy
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from rarefish.errors import ArgumentError, nearest

Network = TypeVar("Network", bound=nn.Module)


class LeNet(nn.Module):
    """The paper's network for 28×28 digits. Each layer includes its ReLU, so images are described after the ReLU."""

    default_layers = ("conv1", "conv2", "fc1")
    default_dropout: ClassVar = {"conv1": 0.25, "conv2": 0.25, "fc1": 0.5}

    def __init__(self, num_classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(channels, 10, kernel_size=5), nn.MaxPool2d(2), nn.ReLU())
        self.conv2 = nn.Sequential(nn.Conv2d(10, 20, kernel_size=5), nn.MaxPool2d(2), nn.ReLU())
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(320, 50), nn.ReLU())
        self.fc2 = nn.Linear(50, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.conv2(self.conv1(images))))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut (He et al., 2015)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """A residual network with a 7×7 stem; (1, 1, 1, 1) blocks make ResNet-10, (2, 2, 2, 2) ResNet-18."""

    default_layers = ("layer3", "avgpool")
    default_dropout: ClassVar = {"layer2": 0.25, "layer3": 0.25, "avgpool": 0.5}

    def __init__(self, blocks: tuple[int, int, int, int], num_classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.layer1 = self._stage(64, 64, blocks[0], stride=1)
        self.layer2 = self._stage(64, 128, blocks[1], stride=2)
        self.layer3 = self._stage(128, 256, blocks[2], stride=2)
        self.layer4 = self._stage(256, 512, blocks[3], stride=2)
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(512, num_classes)

    @staticmethod
    def _stage(width_in: int, width: int, num_blocks: int, stride: int) -> nn.Sequential:
        rest = [BasicBlock(width, width, 1) for _ in range(num_blocks - 1)]
        return nn.Sequential(BasicBlock(width_in, width, stride), *rest)

    def forward(self, images: Tensor) -> Tensor:
        deep = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(images)))))
        return self.fc(self.avgpool(deep))


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "lenet": lambda num_classes, channels: LeNet(num_classes, channels),
    "resnet10": lambda num_classes, channels: ResNet((1, 1, 1, 1), num_classes, channels),
    "resnet18": lambda num_classes, channels: ResNet((2, 2, 2, 2), num_classes, channels),
}
"""Functions (number of classes, number of channels) -> network with torch's default initialization."""


def build_model(name: str, num_classes: int, channels: int, generator: torch.Generator) -> nn.Module:
    """Returns the network with this name, in channels-last layout, with weights drawn from the generator."""
    if name not in MODELS:
        raise ArgumentError(f"There is no model {name!r}. {nearest(name, MODELS)}")
    with torch.random.fork_rng(devices=[]):  # layers draw their initial weights from the global generator
        model = draw_weights(MODELS[name](num_classes, channels), generator)
    # On a CPU, channels last is about 1.6 times as fast for these networks; on a GPU, tensor cores prefer it.
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def classifier_of(model: nn.Module) -> tuple[str, nn.Linear]:
    """Returns the name and module of the last linear layer."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert linear, "a model with a linear classifier"
    return linear[-1]


def with_new_classifier(model: Network, num_classes: int, generator: torch.Generator) -> Network:
    """Returns a copy of the model with a new last linear layer of `num_classes` outputs, drawn from the generator."""
    fresh = copy.deepcopy(model)
    name, old = classifier_of(fresh)
    new = nn.Linear(old.in_features, num_classes, device="meta").to_empty(device=old.weight.device).to(old.weight.dtype)
    _draw_linear(new, generator)
    parent, _, own = name.rpartition(".")
    setattr(fresh.get_submodule(parent), own, new)
    return fresh


def draw_weights(model: Network, generator: torch.Generator) -> Network:
    """Redraws linear and convolutional weights in place from the generator, in torch's ranges; returns the model."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            _draw_linear(module, generator)
    return model


def _draw_linear(module: nn.Linear | nn.Conv2d | nn.ConvTranspose2d, generator: torch.Generator) -> None:
    bound = module.weight[0].numel() ** -0.5
    with torch.no_grad():
        for parameter in (module.weight, module.bias):
            if parameter is not None:
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.copy_((2 * drawn - 1) * bound)
