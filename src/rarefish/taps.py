"""Layers of a running model tapped: what passes through them is kept, and a graph starts there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rarefish.errors import LayerError
from rarefish.layers import find_layers


@dataclass(frozen=True)
class Taps:
    """What the forward passes of a model leave behind."""

    maps: dict[str, Tensor] = field(default_factory=dict)
    """The output of each tapped layer, in the latest pass."""
    nudges: dict[str, Tensor] = field(default_factory=dict)
    """Where there are any, they are added to the channels of the maps, and the graph starts with them."""


@contextmanager
def tapped(model: nn.Module, layers: Sequence[str]) -> Iterator[Taps]:
    """Every forward pass leaves the output of each named layer in the taps.

    An output is kept as the network leaves it: where an in-place ReLU or addition follows, after that one. A layer
    that runs several times in a pass is kept as it was the last time.
    """
    taps = Taps()

    def tap(name: str) -> Callable[[nn.Module, object, object], Tensor]:
        def keep(module: nn.Module, _: object, output: object) -> Tensor:
            if not isinstance(output, Tensor) or output.ndim < 2 or not output.is_floating_point():
                what = f"{type(output).__name__} ({type(module).__name__})"
                raise LayerError(f"The layer {name!r} gives a {what}, not one map per image. Name a layer inside it.")
            if name in taps.nudges:
                output = output + beside(taps.nudges[name], output)
            elif torch.is_grad_enabled() and not output.requires_grad:
                output = start_graph(output)
            taps.maps[name] = output
            return output

        return keep

    handles = []
    try:
        for name, module in find_layers(model, layers).items():
            handles.append(module.register_forward_hook(tap(name)))
        yield taps
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


def beside(nudge_NL: Tensor, map_: Tensor) -> Tensor:
    """A nudge of each channel's mean, spread over the map: the gradient at the nudge is the spatial mean."""
    if map_.ndim == 2:
        return nudge_NL.to(map_.dtype)
    shape = (len(map_), 1, map_.shape[2]) if map_.ndim == 3 else (*map_.shape[:2], *[1] * (map_.ndim - 2))
    return (nudge_NL * (nudge_NL.numel() / map_.numel())).to(map_.dtype).view(shape)
