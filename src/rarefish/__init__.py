"""Find the images worth labeling in a large, biased pool: active learning by Fisher kernel.

The public names are imported on first use, because importing torch takes seconds and `rarefish --help` must be fast.
"""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.data.embeddings import Embeddings
    from rarefish.descriptors import Descriptors
    from rarefish.embedding.compute import embed
    from rarefish.errors import RarefishError
    from rarefish.fisher import describe
    from rarefish.pseudo_labels.monte_carlo import MonteCarlo
    from rarefish.pseudo_labels.posterior import Posterior
    from rarefish.selection import Selection, select

__version__ = "0.1.0"

__all__ = [
    "Descriptors",
    "Embeddings",
    "MonteCarlo",
    "Posterior",
    "RarefishError",
    "Selection",
    "describe",
    "embed",
    "select",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "data.embeddings": ("Embeddings",),
        "descriptors": ("Descriptors",),
        "embedding.compute": ("embed",),
        "errors": ("RarefishError",),
        "fisher": ("describe",),
        "pseudo_labels.monte_carlo": ("MonteCarlo",),
        "pseudo_labels.posterior": ("Posterior",),
        "selection": ("Selection", "select"),
    },
)
