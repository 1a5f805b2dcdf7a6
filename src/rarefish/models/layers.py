"""A model from outside: its layers by name, found or chosen; its logits, its device, its mode."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.errors import LayerError, ModelError, nearest


def find_layers(model: nn.Module, layers: Iterable[str]) -> dict[str, nn.Module]:
    """The named modules of the model, in the order asked for."""
    names = [layers] if isinstance(layers, str) else list(layers)
    if isinstance(layers, str) or not names:
        raise LayerError(
            f"layers must be a sequence of at least one name, not {layers!r}. Write ('layer3', 'avgpool')."
        )
    if len(set(names)) != len(names):
        raise LayerError(f"layers names a layer twice: {', '.join(names)}. Name each once.")
    check_model(model)
    # torch.compile puts a name of its own in front.
    known = {name.replace("_orig_mod.", ""): module for name, module in model.named_modules() if name}
    for name in names:
        if name not in known:
            raise LayerError(f"The model has no layer {name!r}. {nearest(str(name), known)}")
    return {name: known[name] for name in names}


def choose_layers(model: nn.Module, images: Tensor) -> Sequence[str]:
    """Two scales that suit most models: what the classifier sees, and the last map of another width before it.

    A model may name its own in an attribute `default_layers`.
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
    # A container gives out its last layer's tensor: the shortest name is the one a person would say.
    return tuple(
        min((n for n, o in below.items() if o is chosen), key=lambda n: (n.count("."), len(n)))
        for chosen in [*coarser[-1:], last]
    )


def widths_below_logits(model: nn.Module, images: Tensor) -> dict[str, int]:
    """Channels of every layer that images could be described at, in the order they run."""
    return {name: _num_channels(output) for name, output in _outputs_below_logits(model, images).items()}


def device_of(model: nn.Module) -> torch.device:
    """Where the model's weights are."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of number most of the model's weights have."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and with no parameter asking for a gradient; each part's own setting comes back.

    BatchNorm in training mode would mix the images of a batch. A parameter that asks for a gradient would start the
    graph at the first layer, where ours starts at the first tapped one.
    """
    modes = [(module, module.training) for module in model.modules()]
    wishes = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, _ in wishes:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, wish in wishes:
            parameter.requires_grad_(wish)


@contextmanager
def channels_last(model: nn.Module) -> Iterator[None]:
    """Weights of convolutions laid out with the channels last, as a GPU's tensor cores like them; then as before."""
    before = [(parameter, parameter.data) for parameter in model.parameters() if parameter.ndim == 4]
    try:
        for parameter, values in before:
            parameter.data = values.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for parameter, values in before:
            parameter.data = values  # the very tensor: others may hold it


def casting(device: torch.device, precision: str) -> torch.autocast:
    """A context in which what is safe in bfloat16 is computed in it, where that is the precision; `auto`: on a GPU that
    has it."""
    can = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16" or (precision == "auto" and can))


@contextmanager
def setting(owner: Any, name: str, value: object) -> Iterator[None]:
    """A switch of torch's in another position; then as before."""
    before = getattr(owner, name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        setattr(owner, name, before)


def check_model(model: nn.Module) -> None:
    """Complains about models whose layers cannot be tapped."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model is a {type(model).__name__}; give an nn.Module, whose layers have names.")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ModelError(f"The model is wrapped in {type(model).__name__}. Give the model inside: model.module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("A scripted model cannot be tapped. Give the nn.Module it was made from.")


def check_maps(maps: dict[str, Tensor], layers: Iterable[str], num_images: int) -> None:
    """Complains about tapped layers that did not run, or gave something else than one map per image."""
    for name in layers:
        if name not in maps:
            raise LayerError(f"The layer {name!r} took no part in the forward pass. Name one that did.")
        shape = tuple(maps[name].shape)
        if shape[0] != num_images:
            raise LayerError(f"The layer {name!r} gives {shape} for {num_images} images, not one map per image.")
        if _num_channels(maps[name]) < 2:
            raise LayerError(f"The layer {name!r} gives {shape}: one channel has no direction. Name a wider layer.")


def check_logits(output: object, num_images: int) -> Tensor:
    """The output itself, once it is known to be (images, classes) logits."""
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
    """Complains about a model that turns gradients off by itself; call it only where they are on."""
    if not output.requires_grad or output.is_inference():
        raise ModelError(
            "The model's output has no gradient: its forward runs under torch.no_grad() or torch.inference_mode(), or "
            "detaches what it returns. Remove that from forward(); rarefish turns gradients off where it needs none."
        )


def _num_channels(output: Tensor) -> int:
    return output.shape[2] if output.ndim == 3 else output.shape[1]


def _outputs_below_logits(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What each layer on the way to the logits gives for two images, in the order they ran."""
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
    on_the_way = zip(outputs.items(), reached, strict=True)
    # What has the logits' shape is most likely the logits themselves, before a temperature or a softmax.
    return {name: o for (name, o), gradient in on_the_way if gradient is not None and o.shape != logits.shape}
