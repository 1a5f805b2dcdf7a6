"""Descriptors: what the model sees in each image and how each image would move it.

Letters that end a tensor's name, here and in all modules of the method:

    N  images of a data set or a batch     M  validation images      K  centers
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
    """Features and Fisher scores of N images, one row an image, the layers side by side, not yet standardized."""

    index: Int[Tensor, " N"]
    """Position of each image in its data set."""
    features: Float[Tensor, "N D"]
    """Spatial mean of each tapped layer's output."""
    scores: Float[Tensor, "N D_or_0"]
    """Spatial mean of the loss's gradient at the same place; of width 0 where they were not asked for."""
    prediction: Int[Tensor, " N"]
    """The model's own answer."""
    margin: Float[Tensor, " N"]
    """How far the first class is ahead of the second, in logits."""
    label: Int[Tensor, " N"]
    """What the estimator said; the label whose loss gave the scores, where there are scores."""
    posterior: Float[Tensor, "N C_or_0"]
    """How likely each class is, where the estimator says so; else of width 0."""
    layers: tuple[str, ...]
    widths: tuple[int, ...]
    """Channels of each layer, in the order of `layers`; they add up to D."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Rows) -> "Descriptors":
        """The same for some rows: a mask, row numbers or a slice."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {name: column[_beside(rows, column)] for name, column in columns.items() if isinstance(column, Tensor)}
        return replace(self, **taken)


def _beside(rows: Rows, column: Tensor) -> Rows:
    """The index stays on the CPU, the rest where the model is."""
    return rows.to(column.device) if isinstance(rows, Tensor) else rows


def concatenate(parts: Iterable[Descriptors]) -> Descriptors:
    """All rows of several descriptors, in order."""
    parts = list(parts)
    columns: dict[str, Any] = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Descriptors)}
    return replace(parts[0], **{name: torch.cat(c) for name, c in columns.items() if isinstance(c[0], Tensor)})


def gathered(batches: Iterable[Descriptors], at_least: int) -> Iterator[Descriptors]:
    """The same rows in larger batches: a GPU that multiplies a few images by thousands of centers mostly waits."""
    waiting: list[Descriptors] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= at_least:
            yield concatenate(waiting)
            waiting = []
    if waiting:
        yield concatenate(waiting)
