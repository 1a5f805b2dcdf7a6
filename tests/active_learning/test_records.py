"""Records are equal after writing and reading, and files are written atomically."""

import os
from pathlib import Path

import pytest

from rarefish.active_learning.records import Record, read_records, write_records
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
        bought=(0, 1, 1),
        select_s=0.1,
        train_s=0.2,
    )


def test_records_are_equal_after_writing_and_reading(tmp_path: Path) -> None:
    records = [record(seed=s, number=n, value=1 / 3) for s in range(2) for n in (1, 2)]
    write_records(records, tmp_path / "records.jsonl")
    assert read_records(tmp_path / "records.jsonl") == records


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
