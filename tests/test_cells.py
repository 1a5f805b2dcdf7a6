"""Text that a spreadsheet would run goes out as text, and comes back as it was."""

import csv
import doctest
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rarefish import cells
from rarefish.cells import STARTS, from_cell, to_cell
from rarefish.outcome import Selection
from rarefish.records import to_csv
from tests.test_records import record

FORMULAS = ("=HYPERLINK(0)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "＝1")


@given(st.text() | st.builds(str.__add__, st.text("'=+-@\t\r\n＝＋－＠", min_size=1), st.text()))
def test_any_text_comes_back(text: str) -> None:
    written = to_cell(text)
    assert isinstance(written, str) and not written.startswith(STARTS) and from_cell(written) == text


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
    chosen = Selection(one, torch.tensor([-2.5]), one, one, ("a",), 1, pool=Named(), validation=Named())
    chosen.save(tmp_path / "picks.csv")
    with (tmp_path / "picks.csv").open(newline="", encoding="utf-8") as file:
        _, row = csv.reader(file)
    assert row == ["1", "-2.5", "1", *[f"'{name}"] * 3]


@pytest.mark.parametrize("name", [name for name in FORMULAS if name.isprintable()])
def test_records_write_names_as_text(name: str) -> None:
    text = to_csv([replace(record("m", 0, 1, -0.5), method=name)], ("method", "accuracy", "rare_recall"))
    _, row = csv.reader(io.StringIO(text, newline=""))
    assert row[0] == f"'{name}" and "-0.5" in row[1:]
