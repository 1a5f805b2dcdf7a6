"""Descriptors: the features of each image and the gradient (Fisher score) of its loss.

Here and in all modules of the method, tensor names end in letters that give their shape:

    N  images of a dataset or a batch     M  validation images      K  centers
    D  channels of all layers together     L  channels of one layer  C  classes
    R  depth of the table of matches       S  Monte Carlo samples of an image
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rows = Tensor | slice | list[int]


@dataclass(frozen=True)
class Descriptors:
    """Features and Fisher scores of N images: one row per image, with layers concatenated, not standardized."""

    index: Int[Tensor, " N"]
    """Position of each image in its dataset."""
    features: Float[Tensor, "N D"]
    """Spatial mean of each tapped layer's output."""
    scores: Float[Tensor, "N columns"]
    """Spatial mean of the gradient of the loss at the same layers, of width D, or of width 0 if not requested."""
    prediction: Int[Tensor, " N"]
    """The class that the model predicts."""
    margin: Float[Tensor, " N"]
    """Difference between the two largest logits."""
    label: Int[Tensor, " N"]
    """The estimated label, whose loss determines the scores."""
    posterior: Float[Tensor, "N C_or_0"]
    """Class probabilities, or width 0 if the estimator does not return them."""
    layers: tuple[str, ...]
    widths: tuple[int, ...]
    """Number of channels of each layer, in the order of `layers`; they add up to D."""
    score_widths: tuple[int, ...] = ()
    """Number of columns of each layer's scores, which may be shorter vectors with the same inner products after
    standardization. Empty means the same as `widths`."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Rows) -> "Descriptors":
        """Returns the given rows, which are a mask, row numbers or a slice."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {
            name: column[_on_device_of(rows, column)] for name, column in columns.items() if isinstance(column, Tensor)
        }
        return replace(self, **taken)


def _on_device_of(rows: Rows, column: Tensor) -> Rows:
    """Returns row numbers on the device of the column: the index is on the CPU, the rest is where the model is."""
    return rows.to(column.device) if isinstance(rows, Tensor) else rows


def concatenate(parts: Iterable[Descriptors]) -> Descriptors:
    """Returns all rows of several descriptors, in order."""
    parts = list(parts)
    columns: dict[str, Any] = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Descriptors)}
    return replace(parts[0], **{name: torch.cat(c) for name, c in columns.items() if isinstance(c[0], Tensor)})


def gathered(batches: Iterable[Descriptors], at_least: int) -> Iterator[Descriptors]:
    """Yields the same rows in larger batches, since matching a few images at a time would leave a GPU mostly idle."""
    waiting: list[Descriptors] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= at_least:
            yield concatenate(waiting)
            waiting = []
    if waiting:
        yield concatenate(waiting)
