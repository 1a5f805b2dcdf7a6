"""Feature maps out of a running model: which layers, what passes through them, and the model given back as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rarefish.errors import ArgumentError, LayerError, nearest
from rarefish.layers import check_logits, check_maps, check_model, device_of, dtype_of, evaluating, find_layers

PRECISIONS = ("auto", "float32", "bfloat16")
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class View:
    """What one forward pass showed: the logits and, at each tapped layer, the map they came from."""

    images: Tensor
    logits_NC: Tensor
    maps: tuple[Tensor, ...]

    @property
    def features_ND(self) -> Tensor:
        return torch.cat([spatial_mean(m.detach()) for m in self.maps], dim=1)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(spatial_mean(m[:1].detach()).shape[1] for m in self.maps)


Watch = Callable[[Tensor], View]
"""Runs images through the model and tells what it saw."""


@contextmanager
def watched(
    model: nn.Module, layers: Sequence[str], device: torch.device | str | None = None, precision: str = "auto"
) -> Iterator[Watch]:
    """A function that shows a batch to the model; the model is evaluating meanwhile and comes back as it was."""
    if precision not in PRECISIONS:
        raise ArgumentError(f"There is no precision {precision!r}. {nearest(str(precision), PRECISIONS)}")
    check_model(model)
    home, dtype = device_of(model), dtype_of(model)
    device = torch.device(device) if device is not None else home
    in_bfloat16 = precision == "bfloat16" or (precision == "auto" and device.type == "cuda" and dtype == torch.float32)

    def watch(images: Tensor) -> View:
        images = images.to(device, dtype, non_blocking=True)
        maps.clear()
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
            # A copy, since some models normalize their input in place; float, since bf16 has no 1 - p of a sure model.
            logits_NC = check_logits(model(images.clone()), len(images))
        check_maps(maps, layers, len(images))
        logits_NC = logits_NC.float() if logits_NC.dtype in HALVES else logits_NC
        return View(images, logits_NC, tuple(maps[name] for name in layers))

    with ExitStack() as around:
        around.enter_context(torch.inference_mode(False))
        around.enter_context(torch.autocast(device.type, enabled=False))
        tf32 = torch.backends.cudnn.allow_tf32 and precision != "float32"
        around.enter_context(torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=tf32))
        around.enter_context(torch.compiler.set_stance("force_eager"))  # hooks and graphs cut at a tap need eager
        around.enter_context(evaluating(model))
        maps = around.enter_context(tapped(model, layers))
        if device != home:
            around.callback(model.to, home)
            model.to(device)
        yield watch


@contextmanager
def tapped(model: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """A dictionary that every forward pass fills with the output of each named layer.

    An output is kept as the network leaves it: where an in-place ReLU or addition follows, after that one. A layer
    that runs several times in a pass is kept as it was the last time.
    """
    maps: dict[str, Tensor] = {}

    def tap(name: str) -> Callable[[nn.Module, object, object], Tensor]:
        def keep(module: nn.Module, _: object, output: object) -> Tensor:
            if not isinstance(output, Tensor) or output.ndim < 2 or not output.is_floating_point():
                what = f"{type(output).__name__} ({type(module).__name__})"
                raise LayerError(f"The layer {name!r} gives a {what}, not one map per image. Name a layer inside it.")
            maps[name] = start_graph(output) if torch.is_grad_enabled() and not output.requires_grad else output
            return maps[name]

        return keep

    handles = []
    try:
        for name, module in find_layers(model, layers).items():
            handles.append(module.register_forward_hook(tap(name)))
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def start_graph(output: Tensor) -> Tensor:
    """The same values, no copy, as the first tensor of a graph."""
    anchor = torch.empty(0, device=output.device, requires_grad=True)
    # Detached, since a view (Flatten) would draw the caller's own images into the graph.
    started = _StartOfGraph.apply(output.detach(), anchor)
    assert isinstance(started, Tensor)
    return started


class _StartOfGraph(torch.autograd.Function):
    """Not a leaf: an in-place layer behind the tap could not change a leaf."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, output: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None


def pull_back(outputs: Tensor, maps: Sequence[Tensor], **how: Any) -> tuple[Tensor, ...]:
    """Gradients of the outputs at the maps."""
    try:
        return torch.autograd.grad(outputs, maps, **how)
    except RuntimeError as error:
        if "require grad" not in str(error) and "used in the graph" not in str(error):
            raise
        raise LayerError(
            "No gradient of the logits reaches some tapped layer: it is not on the way to them, or the model runs "
            "behind it without gradients (torch.no_grad, checkpointing). Name another layer."
        ) from error


def spatial_mean(map_: Float[Tensor, "N ..."]) -> Float[Tensor, "N L"]:
    """One number a channel: the mean over height and width (N, L, H, W) or over tokens (N, T, L); vectors stay."""
    if map_.ndim == 2:
        return map_.float() if map_.dtype in HALVES else map_
    exact = torch.float64 if map_.dtype == torch.float64 else torch.float32
    return map_.mean(dim=1, dtype=exact) if map_.ndim == 3 else map_.flatten(2).mean(dim=2, dtype=exact)
