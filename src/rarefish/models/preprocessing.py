"""The input a model expects: image size, color mode, mean and standard deviation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rarefish.errors import ArgumentError, ModelError
from rarefish.models import efficientnet_lite
from rarefish.models.layer_selection import check_logits, device_of, dtype_of, evaluating

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet, on which most networks were trained."""


@dataclass(frozen=True)
class Input:
    """The kind of images that a model expects; `mean` and `std` have one number per channel, for values from 0 to 1."""

    size: tuple[int, int] = (224, 224)
    """Height and width."""
    mode: str = "RGB"
    """`RGB`, or `L` for grayscale."""
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        if self.mode not in ("RGB", "L"):
            raise ArgumentError(f"The mode must be RGB or L, not {self.mode!r}.")
        if len(self.size) != 2 or min(self.size) < 1:
            raise ArgumentError(f"The size must be a height and a width of at least 1, not {self.size}.")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != len(self.mode):
                raise ArgumentError(
                    f"Images in mode {self.mode} need {len(self.mode)} numbers for {name}, not {len(values)}."
                )
        if min(self.std) <= 0:
            raise ArgumentError(f"Every std must be greater than 0, not {self.std}.")

    @property
    def channels(self) -> int:
        return len(self.mode)


BUILT_IN = {
    "lenet": Input((28, 28), "L", (0.0,), (1.0,)),
    "resnet10": Input(),
    "resnet18": Input(),
    efficientnet_lite.NAME: Input(mean=efficientnet_lite.MEAN, std=efficientnet_lite.STD),
}


def input_of(
    address: str,
    model: nn.Module,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Input:
    """Returns the input for which the model at this address was made, overridden by the given arguments.

    If nothing is known about the model, the defaults are those of ImageNet.
    """
    family, _, name = address.partition(":")
    if address in BUILT_IN:
        own = BUILT_IN[address]
    elif family == "timm":
        own = _of_timm(getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {})
    elif family == "torchvision":
        own = _of_torchvision(name, model)
    elif family == "transformers":
        own = _of_transformers(name, getattr(model, "config", None))
    else:
        own = Input()
    own = in_mode(own, mode or own.mode)
    return replace(own, size=size or own.size, mean=mean or own.mean, std=std or own.std)


def channels_of(address: str, mode: str | None = None) -> int:
    """Returns the number of channels for which to build the model at this address."""
    return len(mode or BUILT_IN.get(address, Input()).mode)


def in_mode(wanted: Input, mode: str) -> Input:
    """Returns the same input in color or grayscale, with adapted mean and std."""
    if mode == wanted.mode or mode not in ("RGB", "L"):
        return replace(wanted, mode=mode)
    times = len(mode)
    mean, std = (sum(values) / len(values) for values in (wanted.mean, wanted.std))
    return replace(wanted, mode=mode, mean=(mean,) * times, std=(std,) * times)


@torch.no_grad()
def check_outputs(model: nn.Module, wanted: Input, num_classes: int) -> None:
    """Runs the model on a blank image; raises ModelError if it fails or does not return one output per class."""
    shape = (1, wanted.channels, *wanted.size)
    blank = torch.zeros(shape, device=device_of(model), dtype=dtype_of(model))
    height, width = wanted.size
    with evaluating(model):
        try:
            output = model(blank)
        except Exception as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelError(
                f"The model fails on images of {height}×{width} pixels in mode {wanted.mode}: {first}. Give the size "
                "and mode for which it was made."
            ) from error
    found = check_logits(output, 1).shape[1]
    if found != num_classes:
        raise ModelError(
            f"The model has {found} outputs, but there are {num_classes} classes. Give its last layer {num_classes} "
            "outputs; a function with a parameter num_classes receives this number."
        )


def _of_timm(config: Mapping[str, Any]) -> Input:
    size = _pair((config.get("input_size") or (3, 224, 224))[1:])
    return Input(size, mean=tuple(config.get("mean") or MEAN), std=tuple(config.get("std") or STD))


def _of_torchvision(name: str, model: nn.Module) -> Input:
    """Returns the input according to the transforms of torchvision's default weights, without downloading them."""
    from torchvision import models  # pyright: ignore[reportMissingImports]

    preset = models.get_model_weights(name).DEFAULT.transforms()
    fixed = getattr(model, "image_size", None)  # the size of a ViT may differ from that of its default weights
    size = fixed or getattr(preset, "crop_size", None) or 224
    return Input(_pair(size), mean=tuple(getattr(preset, "mean", MEAN)), std=tuple(getattr(preset, "std", STD)))


def _of_transformers(name: str, config: Any) -> Input:
    """Returns the input according to the model's config and, if its folder has one, preprocessor_config.json."""
    path = Path(name).expanduser() / "preprocessor_config.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ModelError(f"{path} is damaged: {error}. Download it again, or remove it.") from error
    size = getattr(config, "image_size", None) or stored.get("crop_size") or stored.get("size") or 224
    own = Input(_pair(size), mean=tuple(stored.get("image_mean") or MEAN), std=tuple(stored.get("image_std") or STD))
    return in_mode(own, "L" if getattr(config, "num_channels", 3) == 1 else "RGB")


def _pair(size: int | Sequence[int] | Mapping[str, int]) -> tuple[int, int]:
    """Returns the height and width in a size that is one number, a sequence of one or two, or a mapping."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge", 224)
        return size.get("height", edge), size.get("width", edge)
    if isinstance(size, int):
        return size, size
    return size[0], size[-1]
