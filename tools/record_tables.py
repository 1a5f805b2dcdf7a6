"""Tables of records beside the results pages: made of runs, and of tables that are there already."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from rarefish.records import Record, read_records, write_whole

CELL = ("method", "validation_size", "imbalance", "start", "restart", "seed")
PASSES = ("method", "validation_size", "imbalance", "round")
NUMBERS = {"seed": int, "round": int, "labels_spent": int, "validation_size": int, "imbalance": int} | dict.fromkeys(
    ("accuracy", "rare_recall", "select_s", "train_s", "best_accuracy"), float
)


def collect(sources: Iterable[Path]) -> list[Record]:
    """The records of all runs and tables; of a cell that several have, those of the first."""
    records = join(read_table(source) if source.suffix == ".csv" else read_run(source) for source in sources)
    return sorted(records, key=lambda r: (-r.imbalance, r.start, r.restart, r.method, r.seed, r.round))


def read_run(folder: Path) -> list[Record]:
    return [record for path in sorted((folder / "records").glob("*.jsonl")) for record in read_records(path)]


def read_table(path: Path) -> list[Record]:
    """The records of a CSV, without what it does not hold; passes are in a file of their own."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made: list[dict[str, Any]] = [{name: NUMBERS.get(name, str)(row[name]) for name in row} for row in rows]
    passes = read_passes(path)
    records = [Record(recall=(), bought=(), **row) for row in made]
    return [replace(record, passes=passes.get(passes_key(record), 0)) for record in records]


def join(tables: Iterable[list[Record]]) -> list[Record]:
    """The records of all tables; of a cell that several have, all rounds of the first."""
    kept: dict[tuple[object, ...], list[Record]] = {}
    for table in tables:
        cells: dict[tuple[object, ...], list[Record]] = {}
        for record in table:
            cells.setdefault(tuple(getattr(record, name) for name in CELL), []).append(record)
        kept = cells | kept
    return [record for rows in kept.values() for record in rows]


def write_passes(records: Sequence[Record], table: Path) -> None:
    """Passes of each round, mean over seeds."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for record in records:
        groups.setdefault(passes_key(record), []).append(record.passes)
    lines = [",".join([*PASSES, "passes"]), *(",".join([*key, f"{mean(some):.0f}"]) for key, some in groups.items())]
    write_whole(_passes_of(table), "\n".join(lines) + "\n")


def read_passes(table: Path) -> dict[tuple[str, ...], int]:
    """Passes of each round, where they were kept."""
    if not _passes_of(table).exists():
        return {}
    with _passes_of(table).open(newline="", encoding="utf-8") as file:
        return {tuple(row[name] for name in PASSES): int(row["passes"]) for row in csv.DictReader(file)}


def passes_key(record: Record) -> tuple[str, ...]:
    return tuple(str(getattr(record, name)) for name in PASSES)


def _passes_of(table: Path) -> Path:
    return table.with_name(f"{table.stem}_passes.csv")
