"""Compute embeddings of images with a model, and keep them in a file that can be resumed and extended."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.embedding.compute import embed

__all__ = ["embed"]

__getattr__, __dir__ = lazy_exports(__name__, {"compute": ("embed",)})
