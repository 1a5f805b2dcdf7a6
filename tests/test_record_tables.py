"""Tables of records: what was there stays, and a cell comes from one source whole."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import record_tables

from rarefish.active_learning.records import COLUMNS, Record, to_csv, to_line

ROUND = Record(
    method="random",
    seed=0,
    round=1,
    labels_spent=10,
    accuracy=0.5,
    rare_recall=0.1,
    recall=(),
    new_labels=(),
    select_s=0.25,
    train_s=1.5,
    validation_size=100,
    passes=7,
)


def rounds(seed: int, count: int, accuracy: float = 0.5) -> list[Record]:
    return [replace(ROUND, seed=seed, round=1 + number, accuracy=accuracy) for number in range(count)]


def write_table(path: Path, records: list[Record]) -> Path:
    path.write_text(to_csv(records))
    record_tables.write_passes(record_tables.count_passes(records), path)
    return path


def write_run(folder: Path, records: list[Record]) -> Path:
    (folder / "records").mkdir(parents=True)
    (folder / "records" / "cell.jsonl").write_text("".join(map(to_line, records)))
    (folder / "settings.json").write_text(json.dumps({"rare": [7, 8]}))
    return folder


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    first, second = rounds(1, 2)
    own = [*rounds(0, 2), replace(first, commit="def", passes=10), replace(second, commit="abc")]
    own[1] = replace(own[1], commit="def")
    path = write_table(tmp_path / "some.csv", own)
    records, passes = record_tables.collect([path])
    assert to_csv(records) == path.read_text()
    assert passes == {("random", "100", "1", "1"): (8, "def"), ("random", "100", "1", "2"): (7, "abc+def")}


def test_counts_and_commits_are_kept_and_old_tables_lack_them(tmp_path: Path) -> None:
    """Runs of older versions have labels but no counts; tables of older versions have neither."""
    first, second = rounds(0, 2)
    run = write_run(
        tmp_path / "run", [replace(first, new_labels=(1, 7, 8)), replace(second, new_labels=(8, 1), commit="abc+")]
    )
    records, _ = record_tables.collect([run])
    (tmp_path / "new.csv").write_text(to_csv([replace(records[0], pseudo_accuracy=0.25), records[1]]))
    found = record_tables.read_table(tmp_path / "new.csv")
    assert [(r.rare_labeled, r.rare_labeled_so_far, r.pseudo_accuracy, r.commit) for r in found] == [
        (2, 2, 0.25, ""),
        (1, 3, None, "abc+"),
    ]
    old = to_csv(rounds(0, 1), COLUMNS[: COLUMNS.index("rare_labeled")])
    (tmp_path / "old.csv").write_text(old)
    (only,) = record_tables.read_table(tmp_path / "old.csv")
    assert (only.rare_labeled, only.rare_labeled_so_far, only.pseudo_accuracy, only.commit) == (None, None, None, "")


def test_of_a_cell_in_two_sources_the_first_counts_whole(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [replace(record, passes=5) for record in rounds(0, 3, accuracy=0.9)])
    table = write_table(tmp_path / "some.csv", [*rounds(0, 2), *rounds(1, 2)])
    records, passes = record_tables.collect([run, table])
    found = [(record.seed, record.round, record.accuracy) for record in records]
    assert found == [(0, 1, 0.9), (0, 2, 0.9), (0, 3, 0.9), (1, 1, 0.5), (1, 2, 0.5)]
    assert {count.passes for count in passes.values()} == {5}


def test_two_methods_of_one_name_are_not_taken_for_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*rounds(0, 2), *rounds(0, 2, accuracy=0.9)])
    with pytest.raises(SystemExit, match="has rounds twice"):
        record_tables.collect([run])


def test_passes_that_nobody_kept_are_not_zero(tmp_path: Path) -> None:
    table = tmp_path / "old.csv"
    table.write_text(to_csv(rounds(0, 2)))
    assert record_tables.collect([table])[1] == {}


def test_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    table = write_table(tmp_path / "some.csv", rounds(0, 3))
    with pytest.raises(SystemExit, match="nowhere holds no records"):
        record_tables.collect([tmp_path / "nowhere", table])
    half = write_run(tmp_path / "run", rounds(0, 2))
    with pytest.raises(SystemExit, match="2 of 3 rounds"):
        record_tables.collect([half, table])
