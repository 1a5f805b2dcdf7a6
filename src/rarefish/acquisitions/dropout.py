"""Dropout at scoring time, on models trained without it as well (the paper's way)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rarefish.errors import ModelError
from rarefish.layers import find_layers


@contextmanager
def dropping(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """The model drops activations while it evaluates: after its own Dropout layers, else where `default_dropout` says.

    The masks come from the generator, on the model's device; torch's own state of chance is not touched.
    """
    own = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    rates = own or getattr(model, "default_dropout", {})
    if not rates:
        raise ModelError(
            "Monte Carlo dropout needs a model with Dropout layers, or with an attribute default_dropout such as "
            "{'layer4': 0.5}; this one has neither."
        )

    def drop(rate: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def hook(_: nn.Module, __: object, output: Tensor) -> Tensor:
            keep = torch.empty_like(output).bernoulli_(1 - rate, generator=generator)
            return output * keep.div_(1 - rate)

        return hook

    layers = find_layers(model, rates)
    handles = [module.register_forward_hook(drop(rates[name])) for name, module in layers.items() if rates[name] > 0]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
