"""A model from outside: its layers by name, found or chosen; its logits, its device."""

from collections.abc import Callable, Iterable, Sequence

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
    known = {name: module for name, module in model.named_modules() if name}
    for name in names:
        if name not in known:
            raise LayerError(f"The model has no layer {name!r}. {nearest(name, known)}")
    return {name: known[name] for name in names}


def choose_layers(model: nn.Module, images: Tensor) -> Sequence[str]:
    """Two scales that suit most models: what the classifier sees, and the last map of another width before it.

    A model may name its own in an attribute `default_layers`.
    """
    own = getattr(model, "default_layers", None)
    if own:
        return tuple(own)
    outputs = _outputs_in_order(model, images)
    logits = outputs.pop("")
    below = {name: output for name, output in outputs.items() if output.data_ptr() != logits.data_ptr()}
    if not below:
        raise LayerError("Found no layer below the logits to describe images with. Name some with layers=(…).")
    last = list(below.values())[-1]
    coarser = [output for output in below.values() if _num_channels(output) != _num_channels(last)]
    # A container gives out its last layer's tensor: the shortest name is the one a person would say.
    return tuple(
        min((n for n, o in below.items() if o is chosen), key=lambda n: (n.count("."), len(n)))
        for chosen in [*coarser[-1:], last]
    )


def device_of(model: nn.Module) -> torch.device:
    """Where the model's weights are."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of number the model computes with."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def check_logits(output: object, num_images: int) -> Tensor:
    """The output itself, once it is known to be (images, classes) logits."""
    if not isinstance(output, Tensor):
        parts = f" with {', '.join(map(str, output))}" if isinstance(output, dict) else ""
        raise ModelError(
            f"The model returns a {type(output).__name__}{parts}, not a tensor of logits. Wrap it in a module whose "
            "forward returns the logits alone, such as `return self.model(images).logits`."
        )
    if output.ndim != 2 or len(output) != num_images or output.shape[1] < 2:
        raise ModelError(
            f"The model returns a tensor of shape {tuple(output.shape)} for {num_images} images; logits must be "
            f"({num_images}, classes) with at least 2 classes. Pool or flatten its output in a wrapper."
        )
    return output


def _num_channels(output: Tensor) -> int:
    return output.shape[2] if output.ndim == 3 else output.shape[1]


def _outputs_in_order(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What each layer gives for the images, in the order they ran; the model's own output under the empty name."""
    outputs: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and output.is_floating_point() and output.ndim >= 2:
                outputs.pop(name, None)
                outputs[name] = output

        return keep

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            check_logits(model(images.to(device_of(model), dtype_of(model))), len(images))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    return outputs
