"""Makes the tables of records beside the results pages, from runs and from existing tables."""

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rarefish.active_learning.records import Record, count_rare, read_records, read_settings
from rarefish.io import write_whole

PASSES = ("method", "validation_size", "imbalance", "round")
INTEGERS = ("seed", "round", "labels_spent", "validation_size", "imbalance", "rare_labeled", "rare_labeled_so_far")
FRACTIONS = ("accuracy", "rare_recall", "select_s", "train_s", "best_accuracy", "pseudo_accuracy")
NUMBERS: dict[str, Callable[[str], Any]] = {**dict.fromkeys(INTEGERS, int), **dict.fromkeys(FRACTIONS, float)}


class PassCount(NamedTuple):
    """Passes over the pool in a round, and the commits that counted them."""

    passes: int
    commit: str = ""


Passes = dict[tuple[str, ...], PassCount]
"""Passes over the pool per round, keyed by the values of the columns PASSES."""


def collect(sources: Iterable[Path]) -> tuple[list[Record], Passes]:
    """Returns the records of all runs and tables, and passes if known; the first source of a cell counts."""
    tables: list[list[Record]] = []
    passes: Passes = {}
    for source in sources:
        is_table = source.suffix == ".csv"
        tables.append(read_table(source) if is_table else read_run(source))
        if not tables[-1]:
            raise SystemExit(f"{source} holds no records.")
        passes = (read_passes(source) if is_table else count_passes(tables[-1])) | passes
    order = ("start", "restart", "method", "validation_size", "seed", "round")
    records = sorted(join(tables), key=lambda record: (-record.imbalance, *(getattr(record, name) for name in order)))
    return records, passes


def read_run(folder: Path) -> list[Record]:
    """Returns the records of a run, with the counts of rare labels."""
    cells = [read_records(path) for path in sorted((folder / "records").glob("*.jsonl"))]
    rare = read_settings(folder)["rare"] if cells else []
    return [record for rows in cells for record in count_rare(rows, rare)]


def read_table(path: Path) -> list[Record]:
    """Returns the records of a CSV file; empty cells, missing columns, recall and labels have their default."""
    status = path.stat()
    return list(_read_table(path, status.st_mtime_ns, status.st_size))


@cache
def _read_table(path: Path, changed: int, size: int) -> tuple[Record, ...]:
    """Reads each version of a file once, since a page of results reads the same tables many times."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made: list[dict[str, Any]] = [
        {name: NUMBERS.get(name, str)(cell) for name, cell in row.items() if cell} for row in rows
    ]
    return tuple(Record(recall=(), new_labels=(), **row) for row in made)


def join(tables: Iterable[list[Record]]) -> list[Record]:
    """Returns the records of all tables; the first table of a cell counts, and must have all of its rounds."""
    kept: dict[tuple[object, ...], list[Record]] = {}
    for table in tables:
        cells: dict[tuple[object, ...], list[Record]] = {}
        for record in table:
            cells.setdefault(record.cell, []).append(record)
        for cell, rows in cells.items():
            if len({record.round for record in rows}) < len(rows):
                raise SystemExit(
                    f"{cell} has rounds twice: two methods have the same name. Collect their runs separately."
                )
            if len(kept.setdefault(cell, rows)) < len(rows):
                raise SystemExit(f"{cell} would have {len(kept[cell])} of {len(rows)} rounds: finish the run first.")
    return [record for rows in kept.values() for record in rows]


def count_passes(records: Sequence[Record]) -> Passes:
    """Returns the passes of each round, mean over seeds."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(passes_key(record), []).append(record)
    return {
        key: PassCount(round(mean(record.passes for record in some)), "+".join(sorted({r.commit for r in some} - {""})))
        for key, some in groups.items()
    }


def write_passes(passes: Passes, table: Path) -> None:
    rows = [(*PASSES, *PassCount._fields), *((*key, *count) for key, count in passes.items())]
    write_whole(_passes_of(table), "".join(f"{','.join(map(str, row))}\n" for row in rows))


def read_passes(table: Path) -> Passes:
    """Returns the saved passes, or an empty dictionary if there are none."""
    if not _passes_of(table).exists():
        return {}
    with _passes_of(table).open(newline="", encoding="utf-8") as file:
        return {
            tuple(row[name] for name in PASSES): PassCount(int(row["passes"]), row["commit"])
            for row in csv.DictReader(file)
        }


def passes_key(record: Record) -> tuple[str, ...]:
    return tuple(str(getattr(record, name)) for name in PASSES)


def _passes_of(table: Path) -> Path:
    return table.with_name(f"{table.stem}_passes.csv")
