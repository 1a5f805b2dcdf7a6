"""Models: networks, loading, preprocessing and layers."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.models.layer_selection import choose_layers, find_layers
    from rarefish.models.loading import load_model, load_weights
    from rarefish.models.networks import LeNet, ResNet, build_model
    from rarefish.models.preprocessing import Input, input_of

__all__ = [
    "Input",
    "LeNet",
    "ResNet",
    "build_model",
    "choose_layers",
    "find_layers",
    "input_of",
    "load_model",
    "load_weights",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "layer_selection": ("choose_layers", "find_layers"),
        "loading": ("load_model", "load_weights"),
        "networks": ("LeNet", "ResNet", "build_model"),
        "preprocessing": ("Input", "input_of"),
    },
)
