"""Find and choose layers of a model, check its outputs, and switch its mode temporarily."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.errors import LayerError, ModelError, nearest


def find_layers(model: nn.Module, layers: Iterable[str]) -> dict[str, nn.Module]:
    """Return the modules of those names, in the order given."""
    names = [layers] if isinstance(layers, str) else list(layers)
    if isinstance(layers, str) or not names:
        raise LayerError(
            f"layers must be a sequence of at least one name, not {layers!r}. Write ('layer3', 'avgpool')."
        )
    if len(set(names)) != len(names):
        raise LayerError(f"layers names a layer twice: {', '.join(names)}. Name each once.")
    check_model(model)
    # torch.compile prefixes every name with its own.
    known = {name.replace("_orig_mod.", ""): module for name, module in model.named_modules() if name}
    for name in names:
        if name not in known:
            raise LayerError(f"The model has no layer {name!r}. {nearest(str(name), known)}")
    return {name: known[name] for name in names}


def choose_layers(model: nn.Module, images: Tensor) -> Sequence[str]:
    """Return two layers that suit most models: the classifier's input, and the last map of another width before it.

    If the model has an attribute `default_layers`, that is returned.
    """
    own = getattr(model, "default_layers", None)
    if own:
        return tuple(own)
    check_model(model)
    below = _outputs_below_logits(model, images)
    if not below:
        raise LayerError("Found no layer below the logits to describe images with. Name some with layers=(…).")
    last = list(below.values())[-1]
    coarser = [output for output in below.values() if _num_channels(output) != _num_channels(last)]
    # A container returns the same tensor as its last layer; the shortest name is the most readable.
    return tuple(
        min((n for n, o in below.items() if o is chosen), key=lambda n: (n.count("."), len(n)))
        for chosen in [*coarser[-1:], last]
    )


def widths_below_logits(model: nn.Module, images: Tensor) -> dict[str, int]:
    """Return the number of channels of each layer that can describe images, in the order they run."""
    return {name: _num_channels(output) for name, output in _outputs_below_logits(model, images).items()}


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's weights."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype that most of the model's weights have."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode with no parameter requiring a gradient; restore all settings afterwards.

    BatchNorm in training mode would mix the images of a batch. A parameter that requires a gradient would start the
    graph at the first layer; ours starts at the first hooked one.
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
    """Convert convolution weights to the channels-last layout, which suits tensor cores; restore them afterwards."""
    before = [(parameter, parameter.data) for parameter in model.parameters() if parameter.ndim == 4]
    try:
        for parameter, values in before:
            parameter.data = values.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for parameter, values in before:
            parameter.data = values  # the same tensor object, since others may reference it


def casting(device: torch.device, precision: str) -> torch.autocast:
    """Return an autocast context for `bfloat16`; `auto` enables it on GPUs that support it."""
    can = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16" or (precision == "auto" and can))


@contextmanager
def setting(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute temporarily, such as one of torch's global flags; restore it afterwards."""
    before = getattr(owner, name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        setattr(owner, name, before)


def check_model(model: nn.Module) -> None:
    """Raise ModelError for models whose layers cannot be hooked."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model is a {type(model).__name__}; give an nn.Module, whose layers have names.")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ModelError(f"The model is wrapped in {type(model).__name__}. Give the model inside: model.module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("A scripted model cannot be hooked. Give the nn.Module it was made from.")


def check_maps(maps: dict[str, Tensor], layers: Iterable[str], num_images: int) -> None:
    """Raise LayerError for hooked layers that did not run or did not return one map per image."""
    for name in layers:
        if name not in maps:
            raise LayerError(f"The layer {name!r} took no part in the forward pass. Name one that did.")
        shape = tuple(maps[name].shape)
        if shape[0] != num_images:
            raise LayerError(f"The layer {name!r} gives {shape} for {num_images} images, not one map per image.")
        if _num_channels(maps[name]) < 2:
            raise LayerError(f"The layer {name!r} gives {shape}: one channel has no direction. Name a wider layer.")


def check_logits(output: object, num_images: int) -> Tensor:
    """Return the output itself after checking that it is logits of shape (images, classes)."""
    if not isinstance(output, Tensor):
        parts = f" with {', '.join(map(str, output))}" if isinstance(output, dict) else ""
        raise ModelError(
            f"The model returns a {type(output).__name__}{parts}, not a tensor of logits. Wrap it in a module whose "
            "forward returns the logits alone, such as `return self.model(images)['logits']`."
        )
    if output.ndim != 2 or len(output) != num_images or output.shape[1] < 2:
        raise ModelError(
            f"The model returns a tensor of shape {tuple(output.shape)} for {num_images} images; logits must be "
            f"({num_images}, classes) with at least 2 classes. Pool or flatten its output in a wrapper."
        )
    return output


def check_gradients(output: Tensor) -> None:
    """Raise ModelError for a model that disables gradients itself; call this only where they are enabled."""
    if not output.requires_grad or output.is_inference():
        raise ModelError(
            "The model's output has no gradient: its forward runs under torch.no_grad() or torch.inference_mode(), or "
            "detaches what it returns. Remove that from forward(); rarefish turns gradients off where it needs none."
        )


def _num_channels(output: Tensor) -> int:
    return output.shape[2] if output.ndim == 3 else output.shape[1]


def _outputs_below_logits(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the output for two images of each layer on the way to the logits, in the order they ran."""
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
    # An output of the logits' shape is most likely the logits themselves, before a temperature or a softmax.
    return {name: o for (name, o), gradient in candidates if gradient is not None and o.shape != logits.shape}
