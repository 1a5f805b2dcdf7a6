"""What is kept of each round, as lines of JSON. Nothing here needs torch."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rarefish.errors import DataError
from rarefish.io import open_regular, to_cell, write_whole

COLUMNS = (
    *("method", "kernel", "labels", "layers", "validation_size", "imbalance", "start", "restart", "seed", "round"),
    *("labels_spent", "accuracy", "rare_recall", "select_s", "train_s"),
)
"""Of a table of records, as results pages have them."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One round of one method with one seed."""

    method: str
    seed: int
    round: int
    labels_spent: int
    accuracy: float
    """On the test set, after the last epoch."""
    rare_recall: float
    """Mean recall over the rare classes."""
    recall: tuple[float, ...]
    """Of every class."""
    bought: tuple[int, ...]
    """The oracle's labels of the images this round chose, without those it had no answer for."""
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
    """Pool indices this round chose, best first."""
    passes: int = 0
    """How often an image went through the model, forward or backward, to choose."""
    best_accuracy: float | None = None
    """The best over all epochs, on the test set: peeking, only to compare with the paper."""
    pseudo_accuracy: float | None = None
    """Share of the chosen images whose pseudo-label was right."""
    rare_precision: float | None = None
    """Share of the images chosen for a failure of a rare class that are of a rare class."""
    validation_recall: tuple[float, ...] = ()
    """Of every class on the validation set, where the model does not learn from it."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """Test images by true class (row) and answer (column)."""

    @property
    def cell(self) -> tuple[str | int, ...]:
        """Of which run of all rounds this is one: what tells rounds of the same number apart."""
        return self.method, self.validation_size, self.imbalance, self.start, self.restart, self.seed


def to_line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"


def write_records(records: Iterable[Record], path: Path) -> None:
    """One line a record, whole or not at all."""
    write_whole(path, "".join(map(to_line, records)))


def read_records(path: Path) -> list[Record]:
    """All records of a file; a last line that a killed run left unfinished does not count."""
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    try:
        return [_from_json(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} does not hold records: {error}.") from error


PARTS = {"methods": list, "rare": list, "dataset": str, "circumstances": dict}
"""Of a run's settings, and of what kind each is."""


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in that folder; complains where there are none, or they are damaged."""
    path = folder / "settings.json"
    try:
        with open_regular(path) as file:
            found = json.loads(file.read())
    except (DataError, OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{folder} holds no run: its settings.json cannot be read. Give the folder of a run."
        ) from error
    is_whole = isinstance(found, dict) and all(
        isinstance(found.get(name, kind()), kind) for name, kind in PARTS.items()
    )
    if not is_whole or not all(isinstance(method, dict) and "name" in method for method in found.get("methods", ())):
        raise DataError(f"{path} does not hold the settings of a run. Take it from a copy, or choose another folder.")
    return {name: kind() for name, kind in PARTS.items()} | found


def to_csv(records: Sequence[Record], columns: Sequence[str] = COLUMNS) -> str:
    """A table of the records, numbers with as many digits as mean something."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        values = [to_cell(getattr(record, column)) for column in columns]
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def _from_json(row: dict[str, Any]) -> Record:
    known = {field.name for field in fields(Record)}
    return Record(**{name: _frozen(value) for name, value in row.items() if name in known})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
