"""Monte Carlo dropout, also for models that were trained without dropout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rarefish.errors import ModelError
from rarefish.models.layer_selection import evaluating, find_layers

INPUT_RATE = 0.5
"""Rate of the dropout on the input of a model that is a single linear layer."""
Predict = Callable[[Tensor], Tensor]
"""Function that maps N images to logits of shape (samples, N, classes)."""


@contextmanager
def mc_dropout(model: nn.Module, samples: int, generator: torch.Generator) -> Iterator[Predict]:
    """Yields a function that predicts with `samples` dropout masks, or with the plain model if `samples` is 1.

    Dropout is applied at the Dropout layers of the model, or at the layers in its attribute `default_dropout`. If the
    model is a single linear layer, such as a head on embeddings, it is applied to the input with a rate of 0.5. The
    masks are drawn once and shared by all images, so a prediction does not depend on the batch, and all images are
    scored by the same networks. The masks come from the generator, on the model's device; the global generator is not
    used.
    """
    with evaluating(model):
        if samples == 1:
            yield lambda images: model(images)[None]
            return
        if isinstance(model, nn.Linear):
            model = nn.Sequential(nn.Dropout(INPUT_RATE), model).eval()
        hooks = _DropoutHooks(model, samples, generator)
        try:
            yield hooks.predict
        finally:
            hooks.remove()


class _DropoutHooks:
    """Forward hooks that apply the dropout masks."""

    def __init__(self, model: nn.Module, samples: int, generator: torch.Generator) -> None:
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
        # Many models contain Dropout layers with p=0, which have no effect.
        own = {name: layer.p for name, layer in layers.items() if 0 < layer.p < 1}
        rates = own or getattr(model, "default_dropout", {})
        if not rates:
            raise ModelError(
                "Monte Carlo dropout needs a model with Dropout layers, or with an attribute default_dropout such as "
                "{'layer4': 0.5}. This model has neither."
            )
        self.model, self.samples, self.generator = model, samples, generator
        # Every path through the network passes through the layers in default_dropout, so the first of them can repeat
        # the images. A shortcut may bypass the Dropout layers of the model, so for these the input must be repeated.
        self.hooks_repeat, self.num_images = not own, 0
        self.masks: dict[tuple[str, torch.Size], Tensor] = {}
        layers = find_layers(model, rates)
        self.handles = [layers[name].register_forward_hook(self._hook(name, rates[name])) for name in layers]

    def predict(self, images: Tensor) -> Tensor:
        self.num_images = len(images)
        repeated = images if self.hooks_repeat else images.repeat(self.samples, *[1] * (images.ndim - 1))
        return self.model(repeated).unflatten(0, (self.samples, self.num_images))

    def _hook(self, name: str, rate: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def drop(_: nn.Module, __: object, output: Tensor) -> Tensor:
            mask = self._mask(name, rate, output)
            by_sample = output[None] if len(output) == self.num_images else output.unflatten(0, (self.samples, -1))
            return (by_sample * mask[:, None]).flatten(0, 1)

        return drop

    def _mask(self, name: str, rate: float, output: Tensor) -> Tensor:
        """Returns one mask per sample, drawn at the first output of a layer and with its memory format."""
        key = name, output.shape[1:]
        if key not in self.masks:
            keep = output.new_empty(self.samples, *output.shape[1:]).bernoulli_(1 - rate, generator=self.generator)
            is_channels_last = output.ndim == 4 and output.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if is_channels_last else torch.contiguous_format
            self.masks[key] = keep.div_(1 - rate).contiguous(memory_format=layout)
        return self.masks[key]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
