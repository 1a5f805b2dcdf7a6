"""The report of runs, made and opened."""

import csv
from pathlib import Path

import pytest
from pyarrow import parquet

from rarefish.active_learning.records import COLUMNS
from rarefish.errors import ArgumentError
from rarefish.report.curves import methods_of
from rarefish.report.experiment_page import FORMATS, comparisons, savings, write_report
from rarefish.report.run_data import read_runs
from tests.browser import open_page


@pytest.mark.browser
def test_every_format_and_a_page_that_needs_no_network(run: Path, tmp_path: Path) -> None:
    contents = read_runs([run])
    assert contents.ours == "fisher density L80" and methods_of(contents.records)[0] == "fisher density L80"
    written = write_report(contents, tmp_path / "out", FORMATS)
    names = {path.name for path in written}
    assert {"report.html", "records.csv", "accuracy.png", "accuracy.pdf", "tsne.png", "confusion_round_3.png"} <= names
    rows = list(csv.DictReader((tmp_path / "out" / "records.csv").read_text().splitlines()))
    assert list(rows[0]) == list(COLUMNS) and len(rows) == 27
    table = parquet.read_table(tmp_path / "out" / "records.parquet")
    assert table.column_names == list(COLUMNS) and table["accuracy"].to_pylist() == [
        r.accuracy for r in contents.records
    ]
    with open_page((tmp_path / "out" / "report.html").as_uri()) as (tab, asked, complaints):
        assert tab.locator("svg").count() == 9 and tab.locator("tr.ours").count() == 4
        assert "varR K128" in tab.inner_text("body") and "Labels saved by fisher density L80" in tab.inner_text("body")
        assert "When to stop" in tab.inner_text("body")
        for width in (360, 1200):
            tab.set_viewport_size({"width": width, "height": 800})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert all(address.startswith(("file:", "data:")) for address in asked) and complaints == []


def test_numbers_of_the_report(run: Path) -> None:
    contents = read_runs([run])
    saved = {one.rival: one for one in savings(contents)}
    # Levels 0.51 to 0.71: varR needs 80 to 120 labels, ours 40 to 82, along straight lines.
    assert 0.3 < saved["varR K128"].mean < 0.5
    assert "random" not in saved  # it never gets where we begin
    tests = {one.rival: one for one in comparisons(contents)}
    assert tests["varR K128"].difference == pytest.approx((0.2 + 0.2 + 0.1) / 3) and tests["random"].num_seeds == 3


def test_unknown_formats_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no format 'htm'. Did you mean html"):
        write_report(read_runs([run]), tmp_path / "out", ["htm"])
