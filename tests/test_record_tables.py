"""Tables of records: what was there stays, and a cell comes from one source whole."""

from dataclasses import replace
from pathlib import Path

import record_tables

from rarefish.records import Record, to_csv, to_line

ROUND = Record(
    method="random",
    seed=0,
    round=1,
    labels_spent=10,
    accuracy=0.5,
    rare_recall=0.1,
    recall=(),
    bought=(),
    select_s=0.25,
    train_s=1.5,
    validation_size=100,
    passes=7,
)


def rounds(seed: int, count: int, accuracy: float = 0.5) -> list[Record]:
    return [replace(ROUND, seed=seed, round=1 + number, accuracy=accuracy) for number in range(count)]


def write_table(path: Path, records: list[Record]) -> Path:
    path.write_text(to_csv(records))
    record_tables.write_passes(records, path)
    return path


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_table(tmp_path / "some.csv", [*rounds(0, 2), *rounds(1, 2)])
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    write_table(path, record_tables.collect([path]))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == before
    assert record_tables.collect([path])[0].passes == 7


def test_of_a_cell_in_two_sources_the_first_counts_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "records").mkdir(parents=True)
    (run / "records" / "cell.jsonl").write_text("".join(map(to_line, rounds(0, 2, accuracy=0.9))))
    table = write_table(tmp_path / "some.csv", [*rounds(0, 3), *rounds(1, 3)])
    found = [(record.seed, record.round, record.accuracy) for record in record_tables.collect([run, table])]
    assert found == [(0, 1, 0.9), (0, 2, 0.9), (1, 1, 0.5), (1, 2, 0.5), (1, 3, 0.5)]
