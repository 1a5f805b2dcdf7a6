"""Records: the results of each round, one JSON object per line. Does not import torch."""

import csv
import io
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rarefish.errors import DataError
from rarefish.io import open_regular, to_cell, write_whole

COLUMNS = (
    *("method", "kernel", "labels", "layers", "validation_size", "imbalance", "start", "restart", "seed", "round"),
    *("labels_spent", "accuracy", "rare_recall", "select_s", "train_s"),
    *("rare_labeled", "rare_labeled_so_far", "pseudo_accuracy", "commit"),
)
"""Columns of a table of records, such as those on the results pages."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The results of one round of one method with one seed."""

    method: str
    seed: int
    round: int
    labels_spent: int
    accuracy: float
    """Accuracy on the test set after the last epoch."""
    rare_recall: float
    """Mean recall over the rare classes."""
    recall: tuple[float, ...]
    """Recall of every class on the test set."""
    new_labels: tuple[int, ...]
    """The labels from the oracle for the images chosen in this round, without those that it did not answer."""
    select_s: float
    train_s: float
    kernel: str = ""
    labels: str = ""
    layers: str = ""
    validation_size: int = 0
    imbalance: int = 1
    start: str = ""
    restart: str = "cold"
    indices: tuple[int, ...] = ()
    """Pool indices chosen in this round, best first."""
    centers: tuple[int, ...] = ()
    """Validation index of the failure that each image in `indices` matches, if the acquisition has centers."""
    passes: int = 0
    """Number of forward and backward passes of the selection, counted per image."""
    best_accuracy: float | None = None
    """Best test accuracy over all epochs. The epoch is chosen on the test set: only for comparison with the paper."""
    pseudo_accuracy: float | None = None
    """Fraction of the chosen images whose pseudo-label was correct."""
    rare_precision: float | None = None
    """Fraction of the images chosen for a failure of a rare class that belong to a rare class."""
    rare_labeled: int | None = None
    """Number of images of rare classes that were labeled in this round."""
    rare_labeled_so_far: int | None = None
    """Number of images of rare classes that were labeled in this and all earlier rounds."""
    commit: str = ""
    """Commit of the code that ran this round, with "+" if the code was modified, or empty if unknown."""
    validation_recall: tuple[float, ...] = ()
    """Recall of every class on the validation set, unless the model is trained on it."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """Number of test images per true class (row) and predicted class (column)."""

    @property
    def cell(self) -> tuple[str | int, ...]:
        """The cell to which this round belongs: the values that distinguish rounds with the same number."""
        return self.method, self.validation_size, self.imbalance, self.start, self.restart, self.seed


def to_line(record: Record) -> str:
    """Returns the record as one line of JSON."""
    return json.dumps(asdict(record)) + "\n"


def write_records(records: Iterable[Record], path: Path) -> None:
    """Writes one line per record, atomically."""
    write_whole(path, "".join(map(to_line, records)))


def read_records(path: Path) -> list[Record]:
    """Returns all records in a file. An incomplete last line, left by a killed run, is ignored."""
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    try:
        return [_from_json(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} does not contain records: {error}.") from error


def count_rare(records: Sequence[Record], rare: Collection[int]) -> list[Record]:
    """Returns the rounds of a cell in order, with the counts of rare labels that older records lack."""
    counted, so_far = [], 0
    for record in records:
        number = sum(label in rare for label in record.new_labels)
        so_far += number
        counted.append(
            replace(record, rare_labeled=number, rare_labeled_so_far=so_far) if record.rare_labeled is None else record
        )
    return counted


SETTINGS_TYPES = {"methods": list, "rare": list, "dataset": str, "circumstances": dict}
"""Keys of a run's settings and their types."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of the run in a folder; raises DataError if they are missing or damaged."""
    path = folder / "settings.json"
    try:
        with open_regular(path) as file:
            settings = json.loads(file.read())
    except (DataError, OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{folder} does not contain a run: its settings.json cannot be read. Give the folder of a run."
        ) from error
    is_valid = isinstance(settings, dict) and all(
        isinstance(settings.get(name, type_()), type_) for name, type_ in SETTINGS_TYPES.items()
    )
    if not is_valid or not all(isinstance(method, dict) and "name" in method for method in settings.get("methods", ())):
        raise DataError(
            f"{path} does not contain the settings of a run. Restore it from a backup, or choose another folder."
        )
    return {name: type_() for name, type_ in SETTINGS_TYPES.items()} | settings


def to_csv(records: Sequence[Record], columns: Sequence[str] = COLUMNS) -> str:
    """Returns the records as CSV, with floats rounded to six significant digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        values = [to_cell(getattr(record, column)) for column in columns]
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def _from_json(row: dict[str, Any]) -> Record:
    known = {field.name for field in fields(Record)}
    return Record(**{name: _to_tuple(value) for name, value in row.items() if name in known})


def _to_tuple(value: Any) -> Any:
    return tuple(_to_tuple(part) for part in value) if isinstance(value, list) else value
