"""Text that a spreadsheet would run goes out as text, and comes back as it was."""

import csv
import doctest
import io
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rarefish import io as cells
from rarefish.active_learning.records import to_csv
from rarefish.errors import DataError
from rarefish.io import FORMULA_STARTS, from_cell, open_regular, to_cell
from rarefish.selection import Selection
from tests.active_learning.test_records import record

FORMULAS = ("=HYPERLINK(0)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "＝1")


@given(st.text() | st.builds(str.__add__, st.text("'=+-@\t\r\n＝＋－＠", min_size=1), st.text()))
def test_any_text_comes_back(text: str) -> None:
    written = to_cell(text)
    assert isinstance(written, str) and not written.startswith(FORMULA_STARTS) and from_cell(written) == text


@pytest.mark.parametrize("number", [-1, -0.5, 7, None, True])
def test_numbers_stay_numbers(number: object) -> None:
    assert to_cell(number) is number


def test_the_examples_hold() -> None:
    assert doctest.testmod(cells).failed == 0


@pytest.mark.parametrize("name", FORMULAS)
def test_a_selection_writes_names_as_text(name: str, tmp_path: Path) -> None:
    class Named(list):
        classes = ("cat", name)
        paths = (name, name)

    one = torch.tensor([1])
    reasons = (torch.tensor([-2.5]), one, one, torch.ones(1, 2) / 2, one)
    chosen = Selection(one, *reasons, ("a",), 1, pool=Named(), validation=Named())
    chosen.save(tmp_path / "picks.csv")
    with (tmp_path / "picks.csv").open(newline="", encoding="utf-8") as file:
        _, row = csv.reader(file)
    assert row == ["1", "-2.5", "1", *[f"'{name}"] * 3]


@pytest.mark.parametrize("name", [name for name in FORMULAS if name.isprintable()])
def test_records_write_names_as_text(name: str) -> None:
    text = to_csv([replace(record("m", 0, 1, -0.5), method=name)], ("method", "accuracy", "rare_recall"))
    _, row = csv.reader(io.StringIO(text, newline=""))
    assert row[0] == f"'{name}" and "-0.5" in row[1:]


def test_a_file_and_a_link_to_it_are_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)
        server.bind("socket")
        for path in ("pipe", "socket", "/dev/zero"):
            with pytest.raises(DataError, match=f"{path} cannot be read: it is not a regular file"):
                open_regular(Path(path))
    with pytest.raises(DataError, match="it is a folder"):
        open_regular(tmp_path)
    with pytest.raises(DataError, match="none cannot be read: No such file or directory"):
        open_regular(tmp_path / "none")
    with pytest.raises(DataError, match=r"nul\\x00 cannot be read: .*null"):
        open_regular(tmp_path / "nul\0")


def test_a_file_that_is_a_hole_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DataError, match="hole has a size of 1,099,511,627,776 bytes, but only 0 are stored on disk"):
        open_regular(tmp_path / "hole")
