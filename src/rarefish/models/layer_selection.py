"""Find and choose layers of a model, check its outputs, and temporarily change its mode."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.errors import LayerError, ModelError, nearest


def find_layers(model: nn.Module, layers: Iterable[str]) -> dict[str, nn.Module]:
    """Returns the modules with these names, in the given order."""
    names = [layers] if isinstance(layers, str) else list(layers)
    if isinstance(layers, str) or not names:
        raise LayerError(
            f"layers must be a sequence of at least one name, not {layers!r}. Write ('layer3', 'avgpool')."
        )
    if len(set(names)) != len(names):
        raise LayerError(f"layers contains a name twice: {', '.join(names)}. Give each name once.")
    check_model(model)
    # torch.compile adds its prefix to every name.
    known = {name.replace("_orig_mod.", ""): module for name, module in model.named_modules() if name}
    for name in names:
        if name not in known:
            raise LayerError(f"The model has no layer {name!r}. {nearest(str(name), known)}")
    return {name: known[name] for name in names}


def choose_layers(model: nn.Module, images: Tensor) -> Sequence[str]:
    """Returns two layers that suit most models: the classifier's input, and the last map before it with another width.

    If the model has an attribute `default_layers`, returns that instead.
    """
    own = getattr(model, "default_layers", None)
    if own:
        return tuple(own)
    check_model(model)
    below = _outputs_below_logits(model, images)
    if not below:
        raise LayerError("Found no layer below the logits that can describe images. Choose layers with layers=(…).")
    last = list(below.values())[-1]
    coarser = [output for output in below.values() if _num_channels(output) != _num_channels(last)]
    # A container returns the same tensor as its last layer; the shortest name is the most readable one.
    return tuple(
        min((n for n, o in below.items() if o is chosen), key=lambda n: (n.count("."), len(n)))
        for chosen in [*coarser[-1:], last]
    )


def find_classifier(model: nn.Module, images: Tensor) -> str | None:
    """Returns the name of the linear layer that computes the logits, or None if the model does not end in one.

    An empty name means that the model itself is a linear layer.
    """
    check_model(model)
    outputs: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def keep(_: nn.Module, __: object, output: Tensor) -> None:
            outputs.pop(name, None)
            outputs[name] = output

        return keep

    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_hook(note(name)) for name, module in linear]
    try:
        with evaluating(model), torch.no_grad():
            one = images[:1].to(device_of(model), dtype_of(model), copy=True)
            logits = check_logits(model(one), 1)
    finally:
        for handle in handles:
            handle.remove()
    found = [name for name, output in outputs.items() if output.shape == logits.shape]
    # A temperature or a softmax may follow, so only the shape must be equal.
    return found[-1].replace("_orig_mod.", "") if found else None


def widths_below_logits(model: nn.Module, images: Tensor) -> dict[str, int]:
    """Returns the number of channels of each layer that can describe images, in the order in which they run."""
    return {name: _num_channels(output) for name, output in _outputs_below_logits(model, images).items()}


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of the model's weights."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Returns the dtype that most of the model's weights have."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model into evaluation mode without parameter gradients within the block, and restores its settings.

    BatchNorm in training mode would mix the images of a batch. A parameter that requires a gradient would make the
    graph start at the first layer; ours starts at the first hooked layer.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def channels_last(model: nn.Module) -> Iterator[None]:
    """Converts convolution weights to channels-last layout within the block, which is faster on tensor cores."""
    before = [(parameter, parameter.data) for parameter in model.parameters() if parameter.ndim == 4]
    try:
        for parameter, values in before:
            parameter.data = values.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for parameter, values in before:
            parameter.data = values  # keeps the tensor object, which others may reference


def casting(device: torch.device, precision: str) -> torch.autocast:
    """Returns an autocast context, enabled for `bfloat16`, and for `auto` on GPUs that support bfloat16."""
    can = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16" or (precision == "auto" and can))


@contextmanager
def setting(owner: Any, name: str, value: object) -> Iterator[None]:
    """Sets an attribute within the block, such as one of torch's global flags."""
    before = getattr(owner, name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        setattr(owner, name, before)


def check_model(model: nn.Module) -> None:
    """Raises ModelError for models whose layers cannot be hooked."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model is a {type(model).__name__}. Give an nn.Module, whose layers have names.")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ModelError(f"The model is wrapped in {type(model).__name__}. Give the inner model: model.module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("A scripted model cannot be hooked. Give the nn.Module from which it was made.")


def check_maps(maps: dict[str, Tensor], layers: Iterable[str], num_images: int) -> None:
    """Raises LayerError for hooked layers that did not run or did not return one map per image."""
    for name in layers:
        if name not in maps:
            raise LayerError(f"The layer {name!r} did not run in the forward pass. Choose one that did.")
        shape = tuple(maps[name].shape)
        if shape[0] != num_images:
            raise LayerError(f"The layer {name!r} returned {shape} for {num_images} images, not one map per image.")
        if _num_channels(maps[name]) < 2:
            raise LayerError(
                f"The layer {name!r} returned {shape}, but one channel has no direction. Choose a wider layer."
            )


def check_logits(output: object, num_images: int) -> Tensor:
    """Returns the output unchanged after checking that it consists of logits of shape (images, classes)."""
    if not isinstance(output, Tensor):
        parts = f" with {', '.join(map(str, output))}" if isinstance(output, dict) else ""
        raise ModelError(
            f"The model returns a {type(output).__name__}{parts}, not a tensor of logits. Wrap it in a module whose "
            "forward returns only the logits, such as `return self.model(images)['logits']`."
        )
    if output.ndim != 2 or len(output) != num_images or output.shape[1] < 2:
        raise ModelError(
            f"The model returns a tensor of shape {tuple(output.shape)} for {num_images} images; logits must be "
            f"({num_images}, classes) with at least 2 classes. Pool or flatten its output in a wrapper."
        )
    return output


def check_gradients(output: Tensor) -> None:
    """Raises ModelError if the model itself disables gradients; call this only where they are enabled."""
    if not output.requires_grad or output.is_inference():
        raise ModelError(
            "The model's output has no gradient: its forward runs under torch.no_grad() or torch.inference_mode(), or "
            "detaches its output. Remove that from forward(); rarefish turns off gradients where it needs none."
        )


def _num_channels(output: Tensor) -> int:
    return output.shape[2] if output.ndim == 3 else output.shape[1]


def _outputs_below_logits(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Returns the outputs, for two images, of all layers on the path to the logits, in execution order."""
    outputs: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and output.requires_grad and output.ndim >= 2 and len(output) == 2:
                outputs.pop(name, None)
                outputs[name] = output

        return keep

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    two = images[:1].repeat(2, *[1] * (images.ndim - 1)).to(device_of(model), dtype_of(model)).requires_grad_()
    try:
        with evaluating(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            logits = check_logits(model(two * 1), 2)
            check_gradients(logits)
            reached = torch.autograd.grad(logits.sum(), [two, *outputs.values()], allow_unused=True)[1:]
    finally:
        for handle in handles:
            handle.remove()
    candidates = zip(outputs.items(), reached, strict=True)
    # An output with the shape of the logits is most likely the logits themselves, before a temperature or a softmax.
    return {name: o for (name, o), gradient in candidates if gradient is not None and o.shape != logits.shape}
