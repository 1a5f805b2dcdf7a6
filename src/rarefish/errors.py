"""The errors a user can cause, as a tree. Each text says what is wrong, with the numbers, and the way out.

    RarefishError                 everything below: catch this one
    ├── ArgumentError             a setting that cannot work: budget, kernel, labels, exclude …
    │   └── LayerError            a layer that is not there, or that gives no tensor
    ├── DataError                 a data set that is empty, or whose items are not (image, label)
    │   └── LabelError            a label that is missing or out of range
    ├── ModelError                a model whose output is not (images, classes) logits
    ├── WorkspaceError            a workspace that is not there, is in use, damaged, or of another version
    └── NotFiniteError            NaN or infinity in features, scores or logits; names the images

Warnings, not errors:
    UnstableDataWarning           a data set that gives another image on the second read
    IntegerImagesWarning          images in whole numbers, which most models were not trained on
"""

import difflib
from collections.abc import Iterable


class RarefishError(Exception):
    """Anything the user can mend."""


class ArgumentError(RarefishError, ValueError):
    """A setting that cannot work."""


class LayerError(ArgumentError):
    """A layer that is not there, or that gives no tensor."""


class DataError(RarefishError, ValueError):
    """A data set that is empty, or whose items are not (image, label)."""


class LabelError(DataError):
    """A label that is missing or out of range."""


class ModelError(RarefishError, TypeError):
    """A model whose output is not (images, classes) logits."""


class WorkspaceError(RarefishError):
    """A workspace that cannot be used."""


class NotFiniteError(RarefishError, ArithmeticError):
    """NaN or infinity where a number must be."""


class UnstableDataWarning(UserWarning):
    """A data set that gives another image on the second read."""


class IntegerImagesWarning(UserWarning):
    """Images in whole numbers, which most models were not trained on."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the known names closest to a mistaken one."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"Known: {shown}."


def list_some(values: Iterable[object], limit: int = 8) -> str:
    """The first few of many values, for an error text."""
    values = list(values)
    more = f" and {len(values) - limit} more" if len(values) > limit else ""
    return ", ".join(str(value) for value in values[:limit]) + more


def printable(text: str) -> str:
    """The text with everything a terminal could trip over spelt out: bytes that are no UTF-8, line breaks, escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same of a text whose line breaks are our own."""
    return "\n".join(printable(line) for line in text.split("\n"))
