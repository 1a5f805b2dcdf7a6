"""Feature maps of a model: hooks on layers, forward passes and pooling; the state of the model is restored."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rarefish.errors import ArgumentError, LayerError, nearest
from rarefish.models.layer_selection import (
    channels_last,
    check_gradients,
    check_logits,
    check_maps,
    check_model,
    device_of,
    dtype_of,
    evaluating,
    find_layers,
    setting,
)


@dataclass(frozen=True)
class Taps:
    """Feature maps recorded in forward passes."""

    maps: dict[str, Tensor] = field(default_factory=dict)
    """The output of each tapped layer in the latest pass."""
    nudges: dict[str, Tensor] = field(default_factory=dict)
    """Values added to the channels of the maps, if given, so that the autograd graph starts with them."""


@contextmanager
def tapped(model: nn.Module, layers: Sequence[str]) -> Iterator[Taps]:
    """Records the output of each named layer in every forward pass.

    If an in-place ReLU or addition follows the layer, the output after it is recorded. If a layer runs several times in
    a pass, its last output is recorded.
    """
    taps = Taps()

    def tap(name: str) -> Callable[[nn.Module, object, object], Tensor]:
        def keep(module: nn.Module, _: object, output: object) -> Tensor:
            if not isinstance(output, Tensor) or output.ndim < 2 or not output.is_floating_point():
                what = f"{type(output).__name__} ({type(module).__name__})"
                raise LayerError(f"The layer {name!r} returned a {what}, not one map per image. Choose an inner layer.")
            if name in taps.nudges:
                output = output + spread(taps.nudges[name], output)
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


INPUT = ":input"
"""Suffix of the name of a layer that means its input instead of its output."""


@contextmanager
def tapped_input(model: nn.Module, layer: str) -> Iterator[Taps]:
    """Records the input of the named layer in every forward pass, under the name with the suffix `:input`."""
    taps = Taps()

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        taps.maps[layer + INPUT] = inputs[0]

    handle = find_layers(model, [layer])[layer].register_forward_pre_hook(keep)
    try:
        yield taps
    finally:
        handle.remove()


def start_graph(output: Tensor) -> Tensor:
    """Returns the same values, uncopied, as the first tensor of an autograd graph."""
    anchor = torch.empty(0, device=output.device, requires_grad=True)
    # Detach it, since a view (Flatten) would pull the caller's images into the graph.
    started = _StartOfGraph.apply(output.detach(), anchor)
    assert isinstance(started, Tensor)
    return started


class _StartOfGraph(torch.autograd.Function):
    """Returns a tensor that is not a leaf, since in-place layers after the tap must not change a leaf."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, output: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None


def spread(nudge_NL: Tensor, map_: Tensor) -> Tensor:
    """Returns per-channel values spread over a map, so that their gradient is the map's spatial mean gradient."""
    if map_.ndim == 2:
        return nudge_NL.to(map_.dtype)
    shape = (len(map_), 1, map_.shape[2]) if map_.ndim == 3 else (*map_.shape[:2], *[1] * (map_.ndim - 2))
    return (nudge_NL * (nudge_NL.numel() / map_.numel())).to(map_.dtype).view(shape)


PRECISIONS = ("auto", "float32", "bfloat16")
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class View:
    """The result of a forward pass: the logits and the map of each tapped layer."""

    images: Tensor
    logits_NC: Tensor
    maps: tuple[Tensor, ...]
    """The maps or, from compiled code, per-channel zeros whose gradient is the map's spatial mean gradient."""
    means_ND: Tensor | None = None
    """Spatial means of the maps, if already computed."""

    @property
    def features_ND(self) -> Tensor:
        if self.means_ND is not None:
            return self.means_ND
        return torch.cat([spatial_mean(m.detach()) for m in self.maps], dim=1)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(spatial_mean(m[:1].detach()).shape[1] for m in self.maps)

    @property
    def score_widths(self) -> tuple[int, ...]:
        """The number of columns of the scores of each layer."""
        return self.widths

    def scores(self, label_N: Tensor) -> Tensor:
        """Returns the Fisher scores: the gradient of each image's loss at each tapped layer.

        The loss is summed, not averaged, so that the gradient of an image does not depend on the others in its batch.
        """
        loss = cross_entropy(self.logits_NC, label_N, reduction="sum")
        return torch.cat([spatial_mean(gradient) for gradient in pull_back(loss, self.maps)], dim=1)


Watch = Callable[[Tensor], View]
"""Function that runs a batch of images through the model and returns a `View`."""


@runtime_checkable
class Pass(Protocol):
    """Runs batches through a model; `watcher` does the same without compiled code."""

    def __call__(self, images: Tensor, /) -> View: ...

    @property
    def watcher(self) -> Any:
        """A `Watch` with the `device` on which it runs."""
        ...


@dataclass
class Watcher:
    """Runs batches of images through a tapped model."""

    model: nn.Module
    layers: Sequence[str]
    device: torch.device
    dtype: torch.dtype
    in_bfloat16: bool
    taps: Taps
    layout: ExitStack | None = None
    """On a GPU, a context that keeps the weights in channels-last layout until it is closed."""

    def __call__(self, images: Tensor) -> View:
        images = self.fetch(images)
        try:
            logits_NC = self.run(images)
        except RuntimeError as error:
            if self.layout is None or "view size" not in str(error):
                raise
            # Models that call view() need the contiguous layout.
            self.layout.close()
            self.layout = None
            images = images.contiguous()
            logits_NC = self.run(images)
        check_maps(self.taps.maps, self.layers, len(images))
        return View(images, logits_NC, tuple(self.taps.maps[name] for name in self.layers))

    def fetch(self, images: Tensor) -> Tensor:
        """Returns the images on the model's device, with its data type and memory layout."""
        images = images.to(self.device, self.dtype, non_blocking=True)
        is_last = self.layout is not None and images.ndim == 4
        return images.contiguous(memory_format=torch.channels_last) if is_last else images

    def run(self, images: Tensor) -> Tensor:
        """Returns the logits; the maps are recorded in the taps."""
        self.taps.maps.clear()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            # Copy, since some models normalize in place. Logits in float32, since bfloat16 has no 1 - p for p near 1.
            logits_NC = check_logits(self.model(images.clone()), len(images))
        return logits_NC.float() if logits_NC.dtype in HALVES else logits_NC


@contextmanager
def watched(
    model: nn.Module, layers: Sequence[str], device: torch.device | str | None = None, precision: str = "auto"
) -> Iterator[Watcher]:
    """Yields a function that runs batches through the model in evaluation mode, and restores the model's state."""
    if precision not in PRECISIONS:
        raise ArgumentError(f"There is no precision {precision!r}. {nearest(str(precision), PRECISIONS)}")
    check_model(model)
    home, dtype = device_of(model), dtype_of(model)
    device = torch.device(device) if device is not None else home
    in_bfloat16 = precision == "bfloat16" or (precision == "auto" and device.type == "cuda" and dtype == torch.float32)
    with ExitStack() as around:
        around.enter_context(torch.inference_mode(False))
        around.enter_context(torch.autocast(device.type, enabled=False))
        if precision == "float32" and device.type == "cuda":
            # By default, convolutions on a GPU round to 10 bits.
            around.enter_context(setting(torch.backends.cudnn.conv, "fp32_precision", "ieee"))  # pyright: ignore[reportAttributeAccessIssue]
        around.enter_context(torch.compiler.set_stance("force_eager"))  # needed by hooks and by graphs cut at a tap
        around.enter_context(evaluating(model))
        taps = around.enter_context(tapped(model, layers))
        if device != home:
            around.callback(model.to, home)
            model.to(device)
        layout = around.enter_context(ExitStack()) if device.type == "cuda" else None
        if layout:
            layout.enter_context(channels_last(model))
        yield Watcher(model, tuple(layers), device, dtype, in_bfloat16, taps, layout)


def pull_back(outputs: Tensor, maps: Sequence[Tensor], **how: Any) -> tuple[Tensor, ...]:
    """Returns the gradients of the outputs with respect to the maps."""
    if not any(map_.requires_grad for map_ in maps):
        check_gradients(outputs)
    try:
        return torch.autograd.grad(outputs, maps, **how)
    except RuntimeError as error:
        if "require grad" not in str(error) and "used in the graph" not in str(error):
            raise
        raise LayerError(
            "No gradient of the logits reaches one of the layers: it is not on the path to them, or the model runs "
            "without gradients after it (torch.no_grad, checkpointing). Choose another layer."
        ) from error


def spatial_mean(map_: Float[Tensor, "N ..."]) -> Float[Tensor, "N L"]:
    """Returns the mean per channel over height and width (N, L, H, W) or tokens (N, T, L); vectors are unchanged."""
    if map_.ndim == 2:
        return map_.float() if map_.dtype in HALVES else map_
    exact = torch.float64 if map_.dtype == torch.float64 else torch.float32
    return map_.mean(dim=1, dtype=exact) if map_.ndim == 3 else map_.flatten(2).mean(dim=2, dtype=exact)
