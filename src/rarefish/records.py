"""What is kept of each round, as lines of JSON. Nothing here needs torch."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


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
    """True labels of the images this round chose."""
    select_s: float
    train_s: float


def write_records(records: Iterable[Record], path: Path) -> None:
    """One line a record, whole or not at all."""
    write_whole(path, "".join(json.dumps(asdict(record)) + "\n" for record in records))


def read_records(path: Path) -> list[Record]:
    """All records of a file written by `write_records`."""
    return [_from_json(json.loads(line)) for line in path.read_text().splitlines()]


def _from_json(row: dict[str, Any]) -> Record:
    row["recall"], row["bought"] = tuple(row["recall"]), tuple(row["bought"])
    return Record(**row)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is never seen half done: a temporary one beside it is renamed."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
