"""The report of runs, made and opened."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from rarefish.active_learning.records import COLUMNS, write_records
from rarefish.errors import ArgumentError, DataError
from rarefish.report.curves import methods_of
from rarefish.report.experiment_page import FORMATS, comparisons, reached, savings, write_report
from rarefish.report.run_data import read_runs
from tests.browser import open_page
from tests.report.made import rounds


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


def test_baselines_are_lines_and_rows_of_the_report(run: Path, tmp_path: Path) -> None:
    """The trusted images alone: as good as ours between its second and third round; the posterior: better."""
    for method, levels in (("trusted images only", (0.74, 0.76, 0.78)), ("posterior alone", (0.9, 0.9, 0.9))):
        for seed, accuracy in enumerate(levels):
            record = replace(rounds(method, seed, (accuracy - 0.01 * seed,))[0], round=0, labels_spent=0, new_labels=())
            write_records([record], run / "records" / f"{method}-s{seed}.jsonl")
    contents = read_runs([run])
    assert methods_of(contents.records) == ["fisher density L80", "random", "varR K128"]
    tests = {one.rival: one.difference for one in comparisons(contents)}
    assert tests["posterior alone"] == pytest.approx((0.5 + 0.7 + 0.8) / 3 + 0.01 - 0.9)
    saved = {name: (accuracy, labels) for name, _, accuracy, labels in reached(contents)}
    assert saved == {"trusted images only": ("76.0 ± 2.0", "100"), "posterior alone": ("90.0 ± 0.0", "not reached")}
    assert "trusted images only" not in [one.rival for one in savings(contents)]
    write_report(contents, tmp_path, ["html", "csv"])
    page = (tmp_path / "report.html").read_text()
    assert page.count("<tr><td>posterior alone</td><td>3</td><td>") == 3  # accuracy, recall, labels needed
    assert "<tr><th>labels</th><th>n</th><th>0</th><th>40</th>" in page
    rows = list(csv.DictReader((tmp_path / "records.csv").read_text().splitlines()))
    assert sum(row["round"] == "0" for row in rows) == 6 and len(rows) == 33
    for path in (run / "records").glob("*"):
        if path.name[0] not in "tp":
            path.unlink()
    with pytest.raises(DataError, match="only baselines and no finished rounds yet"):
        read_runs([run])


def test_unknown_formats_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no format 'htm'. Did you mean html"):
        write_report(read_runs([run]), tmp_path / "out", ["htm"])
