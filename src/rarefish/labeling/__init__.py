"""The labeling server and its pages, for one or several annotators. Does not import torch."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.labeling.server import make_app, serve
    from rarefish.labeling.tokens import Keys, make_keys

__all__ = ["Keys", "make_app", "make_keys", "serve"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "server": ("make_app", "serve"),
        "tokens": ("Keys", "make_keys"),
    },
)
