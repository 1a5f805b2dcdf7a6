"""Dropout at scoring time, on models trained without it as well (the paper's way)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rarefish.errors import ModelError
from rarefish.models.layers import evaluating, find_layers

Answer = Callable[[Tensor], Tensor]
"""N images -> their logits (samples, N, classes)."""


@contextmanager
def sampling(model: nn.Module, samples: int, generator: torch.Generator) -> Iterator[Answer]:
    """A function that asks `samples` networks, each the model with other activations dropped (1: the model as it is).

    It drops after the model's own Dropout layers, else where `default_dropout` says. The masks are drawn once and all
    images meet the same ones: what is said of an image does not depend on its batch, and images are compared by the
    same networks. They come from the generator, on the model's device; torch's own state of chance is not touched.
    """
    with evaluating(model):
        if samples == 1:
            yield lambda images: model(images)[None]
            return
        masks = _Masks(model, samples, generator)
        try:
            yield masks.answer
        finally:
            masks.remove()


class _Masks:
    """Hooks on the layers that drop."""

    def __init__(self, model: nn.Module, samples: int, generator: torch.Generator) -> None:
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
        # Many models carry layers that are switched off.
        own = {name: layer.p for name, layer in layers.items() if 0 < layer.p < 1}
        rates = own or getattr(model, "default_dropout", {})
        if not rates:
            raise ModelError(
                "Monte Carlo dropout needs a model with Dropout layers, or with an attribute default_dropout such as "
                "{'layer4': 0.5}; this one has neither."
            )
        self.model, self.samples, self.generator = model, samples, generator
        # All of a network passes through the layers of default_dropout, so that images need not be repeated before the
        # first of them; around a Dropout layer of the model's own there may be a shortcut.
        self.grows, self.num_images = not own, 0
        self.drawn: dict[tuple[str, torch.Size], Tensor] = {}
        layers = find_layers(model, rates)
        self.handles = [layers[name].register_forward_hook(self._hook(name, rates[name])) for name in layers]

    def answer(self, images: Tensor) -> Tensor:
        self.num_images = len(images)
        shown = images if self.grows else images.repeat(self.samples, *[1] * (images.ndim - 1))
        return self.model(shown).unflatten(0, (self.samples, self.num_images))

    def _hook(self, name: str, rate: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def drop(_: nn.Module, __: object, output: Tensor) -> Tensor:
            mask = self._mask(name, rate, output)
            by_sample = output[None] if len(output) == self.num_images else output.unflatten(0, (self.samples, -1))
            return (by_sample * mask[:, None]).flatten(0, 1)

        return drop

    def _mask(self, name: str, rate: float, output: Tensor) -> Tensor:
        """One for each sample, drawn when a layer's output is first seen, laid out as that is."""
        key = name, output.shape[1:]
        if key not in self.drawn:
            keep = output.new_empty(self.samples, *output.shape[1:]).bernoulli_(1 - rate, generator=self.generator)
            is_last = output.ndim == 4 and output.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if is_last else torch.contiguous_format
            self.drawn[key] = keep.div_(1 - rate).contiguous(memory_format=layout)
        return self.drawn[key]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
