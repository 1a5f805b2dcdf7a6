"""Find the images worth labeling in a large, biased pool: active learning by Fisher kernel.

The public names are imported on first use: importing torch costs seconds, and `rarefish --help` must not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rarefish.descriptors import Descriptors as Descriptors
    from rarefish.errors import RarefishError as RarefishError
    from rarefish.fisher import describe as describe
    from rarefish.pseudo_labels.monte_carlo import MonteCarlo as MonteCarlo
    from rarefish.pseudo_labels.posterior import Posterior as Posterior
    from rarefish.selection import Selection as Selection
    from rarefish.selection import select as select

__version__ = "0.1.0"

_HOMES = {
    "Descriptors": "descriptors",
    "MonteCarlo": "pseudo_labels.monte_carlo",
    "Posterior": "pseudo_labels.posterior",
    "RarefishError": "errors",
    "Selection": "selection",
    "describe": "fisher",
    "select": "selection",
}

__all__ = ["Descriptors", "MonteCarlo", "Posterior", "RarefishError", "Selection", "describe", "select"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'rarefish' has no attribute {name!r}")
    return getattr(import_module(f"rarefish.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
