"""The errors that users can cause. Each message says what is wrong, with the numbers, and how to fix it.

    RarefishError                 base class of all errors below
    ├── ArgumentError             invalid argument: budget, kernel, labels, exclude …
    │   ├── LayerError            layer that does not exist or does not return a tensor
    │   └── OtherModelError       file of embeddings that another model has computed
    ├── DataError                 dataset that is empty, or whose items are not (image, label)
    │   └── LabelError            label that is missing or out of range
    ├── ModelError                model whose output is not logits of shape (images, classes)
    ├── WorkspaceError            workspace that is missing, in use, damaged, or of another version
    └── NotFiniteError            NaN or infinity in features, scores or logits

Warnings:
    UnstableDataWarning           dataset that returns a different image on a second read
    IntegerImagesWarning          integer images, on which most models were not trained
    EmptyEmbeddingsWarning        embeddings that are all zero and therefore have no direction
"""

import difflib
from collections.abc import Iterable


class RarefishError(Exception):
    """Base class of all errors that users can cause and fix."""


class ArgumentError(RarefishError, ValueError):
    """An argument is invalid."""


class LayerError(ArgumentError):
    """A layer does not exist or does not return a tensor."""


class OtherModelError(ArgumentError):
    """A file of embeddings was computed by another model."""


class DataError(RarefishError, ValueError):
    """A dataset is empty or unreadable, or its items are not (image, label)."""


class LabelError(DataError):
    """A label is missing or out of range."""


class ModelError(RarefishError, TypeError):
    """A model's output is not logits of shape (images, classes)."""


class WorkspaceError(RarefishError):
    """A workspace cannot be used."""


class NotFiniteError(RarefishError, ArithmeticError):
    """A value is NaN or infinite."""


class UnstableDataWarning(UserWarning):
    """A dataset returns a different image on a second read."""


class IntegerImagesWarning(UserWarning):
    """Images are integers, on which most models were not trained."""


class EmptyEmbeddingsWarning(UserWarning):
    """Embeddings are all zero and therefore have no direction."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that suggests the known names closest to an unknown one."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"Known: {shown}."


def list_some(values: Iterable[object], limit: int = 8) -> str:
    """Returns the first few of many values as text, for an error message."""
    values = list(values)
    more = f" and {len(values) - limit} more" if len(values) > limit else ""
    return ", ".join(str(value) for value in values[:limit]) + more


def printable(text: str) -> str:
    """Returns the text with unprintable characters, line breaks and invalid UTF-8 escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Returns the text as `printable` does, but keeps line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))
