"""What a selection comes to: the chosen images and why, as rows, a table or a picture."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.cells import to_cell
from rarefish.io import write_whole
from rarefish.pictures import draw_pairs
from rarefish.reading import UNREADABLE, Data
from rarefish.unpacking import image_of

COLUMNS = ("index", "similarity", "center", "pseudo_label")
PATHS = ("path", "center_path")
"""Further columns of a file, where the data sets know where their images are."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen images, best first, and for each the validation failure that called for it."""

    indices: Int[Tensor, " P"]
    """Pool indices, distinct, none excluded."""
    similarities: Float[Tensor, " P"]
    """The kernel between each image and its center."""
    centers: Int[Tensor, " P"]
    """Validation index of the failure that called for each image."""
    pseudo_labels: Int[Tensor, " P"]
    """The label each image was described with."""
    layers: tuple[str, ...]
    num_failures: int
    """Validation images the model gets wrong."""
    notes: tuple[str, ...] = ()
    """What was decided on the way, in words."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Pool images that were left out, and why."""
    pool: Data | None = field(default=None, repr=False, compare=False)
    validation: Data | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self) -> list[tuple[int, float, int, int]]:
        """(index, similarity, center, pseudo_label) of each image."""
        columns = (self.indices, self.similarities, self.centers, self.pseudo_labels)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas  # not a dependency: rows() and save() do without

        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def save(self, path: str | Path) -> None:
        """Writes the rows as CSV, whole or not at all; with paths and class names where the data sets have them."""
        text, rows, columns = io.StringIO(newline=""), self.rows(), COLUMNS
        names = dict(enumerate(getattr(self.validation, "classes", ())))
        rows = [(*row[:3], names.get(row[3], row[3])) for row in rows]
        paths, trusted = (getattr(data, "paths", None) for data in (self.pool, self.validation))
        if paths is not None and trusted is not None:
            rows, columns = [(*row, paths[row[0]], trusted[row[2]]) for row in rows], (*COLUMNS, *PATHS)
        csv.writer(text).writerows([columns, *(map(to_cell, row) for row in rows)])
        write_whole(Path(path), text.getvalue())

    def contact_sheet(self, path: str | Path, limit: int = 100) -> None:
        """Writes a picture: each chosen image with the failure that called for it at its left."""
        assert self.pool is not None and self.validation is not None
        rows = self.rows()[: max(1, limit)]
        pairs = [(_image_or_blank(self.validation, center), _image_or_blank(self.pool, i)) for i, _, center, _ in rows]
        draw_pairs(pairs, [f"{i} as {label}" for i, _, _, label in rows]).save(path)


def _image_or_blank(data: Data, index: int) -> Any:
    """The image, or a black one where it cannot be read any more."""
    try:
        return image_of(data[index])
    except UNREADABLE:
        return torch.zeros(1, 56, 56)
