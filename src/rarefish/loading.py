"""A user's own model, by its address, with weights from a file; nothing in the file is ever run."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.errors import ArgumentError, ModelError, list_some, nearest
from rarefish.models import MODELS, build_model


def load_model(address: str, num_classes: int, channels: int, weights: Path | None = None) -> nn.Module:
    """The network of that name, or what a function gives: FILE.py:FUNCTION or module:function.

    A function with a parameter `num_classes` is told their number.
    """
    if ":" in address:
        function = find_function(address)
        told = {"num_classes": num_classes} if "num_classes" in inspect.signature(function).parameters else {}
        model = function(**told)
    else:
        model = build_model(address, num_classes, channels, torch.Generator().manual_seed(0))
    if not isinstance(model, nn.Module):
        raise ModelError(f"{address} gives a {type(model).__name__}, not an nn.Module.")
    if weights is not None:
        load_weights(model, weights)
    return model


def find_function(address: str) -> Any:
    place, _, name = address.rpartition(":")
    try:
        if place.endswith(".py"):
            # Under a name that other processes find too: what they send each other is found by it.
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None and spec.loader is not None
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except (ImportError, FileNotFoundError) as error:
        raise ArgumentError(
            f"There is no {place!r}: {error}. A model is FILE.py:FUNCTION, module:function, or {', '.join(MODELS)}."
        ) from error
    known = [key for key, value in vars(module).items() if callable(value)]
    if name not in known:
        raise ArgumentError(f"{place} has no function {name!r}. {nearest(name, known)}")
    return getattr(module, name)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fills the model from a .safetensors file or from a .pt file that holds tensors alone."""
    if path.suffix == ".safetensors":
        if not importlib.util.find_spec("safetensors"):
            raise ArgumentError(f"{path} needs a package: pip install safetensors.")
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

        found: Any = load_file(path)
    else:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            first = str(error).splitlines()[0]
            raise ModelError(f"{path} does not hold weights alone: {first} Save model.state_dict().") from error
    for wrapped in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, dict) and isinstance(found.get(wrapped), dict):
            found = found[wrapped]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"{path} holds no weights by name. Save model.state_dict().")
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        own, theirs = set(model.state_dict()), set(found)
        other = {name for name in own & theirs if model.state_dict()[name].shape != found[name].shape}
        counts = (("missing", own - theirs), ("not in the model", theirs - own), ("of another shape", other))
        told = "; ".join(f"{what}: {list_some(sorted(names), 3)}" for what, names in counts if names)
        raise ModelError(f"{path} is of another network. {told}.") from error
