"""The command line."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.cli.main import cli

__all__ = ["cli"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "main": ("cli",),
    },
)
