"""Records are equal after writing and reading, and files are written atomically."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rarefish.active_learning.records import Record, count_rare, read_records, write_records
from rarefish.errors import DataError
from rarefish.io import write_whole


def record(method: str = "fisher", seed: int = 0, number: int = 1, value: float = 0.5) -> Record:
    return Record(
        method=method,
        seed=seed,
        round=number,
        labels_spent=40 * number,
        accuracy=value,
        rare_recall=value,
        recall=(1.0, value),
        new_labels=(0, 1, 1),
        select_s=0.1,
        train_s=0.2,
    )


def test_records_are_equal_after_writing_and_reading(tmp_path: Path) -> None:
    records = [record(seed=s, number=n, value=1 / 3) for s in range(2) for n in (1, 2)]
    write_records(records, tmp_path / "records.jsonl")
    assert read_records(tmp_path / "records.jsonl") == records


def test_records_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records([record()], path)
    path.write_text(path.read_text().replace('"new_labels"', '"bought"'))
    with pytest.raises(DataError, match="does not contain records: .*new_labels"):
        read_records(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / f"page.html.{os.getpid()}.part").symlink_to(target)
    (tmp_path / "page.html").symlink_to(target)
    write_whole(tmp_path / "page.html", "new")
    assert target.read_text() == "mine"
    assert not (tmp_path / "page.html").is_symlink() and (tmp_path / "page.html").read_text() == "new"


def test_rare_labels_are_counted_where_no_count_was_saved() -> None:
    """Each record has the labels 0, 1, 1."""
    counted = count_rare([record(number=number) for number in (1, 2, 3)], {1})
    assert [(r.rare_labeled, r.rare_labeled_so_far) for r in counted] == [(2, 2), (2, 4), (2, 6)]
    known = replace(record(), rare_labeled=5, rare_labeled_so_far=9)
    assert count_rare([known], {1}) == [known]
