"""The report of runs, made and opened."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rarefish.cli import cli
from rarefish.errors import ArgumentError, DataError
from rarefish.records import COLUMNS, Record, write_records
from rarefish.report.curves import complete, methods_of, name_apart
from rarefish.report.experiments import FORMATS, comparisons, read_runs, savings, write_report
from tests.browser import open_page
from tests.test_records import record

LEVELS = {"random": (0.3, 0.35, 0.4), "varR K128": (0.3, 0.5, 0.7), "fisher density L80": (0.5, 0.7, 0.8)}


def rounds(method: str, seed: int, levels: tuple[float, ...]) -> list[Record]:
    confusion = tuple(tuple(10 if i == j else 1 for j in range(4)) for i in range(4))
    return [
        replace(
            record(method, seed, number, level + 0.01 * seed),
            recall=(1.0, 1.0, level, level),
            confusion=confusion,
            imbalance=100,
            rare_precision=level if "fisher" in method else None,
            pseudo_accuracy=level if "fisher" in method else None,
            passes=1000,
        )
        for number, level in enumerate(levels, 1)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my run"
    (folder / "records").mkdir(parents=True)
    (folder / "snapshots").mkdir()
    for method, levels in LEVELS.items():
        for seed in range(3):
            write_records(rounds(method, seed, levels), folder / "records" / f"{method}-s{seed}.jsonl")
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 4
    features = rng.normal(0, 1, (60, 5)) + truth[:, None]
    np.savez(folder / "snapshots" / "random-s0-r03.npz", features=features, truth=truth, answers=np.roll(truth, 1))
    order = [{"name": name} for name in ("fisher density L80", "random", "varR K128")]
    (folder / "settings.json").write_text(json.dumps({"methods": order, "rare": [2, 3]}))
    return folder


@pytest.mark.browser
def test_every_format_and_a_page_that_needs_no_network(run: Path, tmp_path: Path) -> None:
    contents = read_runs([run])
    assert contents.ours == "fisher density L80" and methods_of(contents.records)[0] == "fisher density L80"
    written = write_report(contents, tmp_path / "out", FORMATS)
    names = {path.name for path in written}
    assert {"report.html", "records.csv", "accuracy.png", "accuracy.pdf", "tsne.png", "confusion_round_3.png"} <= names
    rows = list(csv.DictReader((tmp_path / "out" / "records.csv").read_text().splitlines()))
    assert list(rows[0]) == list(COLUMNS) and len(rows) == 27
    with open_page((tmp_path / "out" / "report.html").as_uri()) as (tab, asked, complaints):
        assert tab.locator("svg").count() == 7 and tab.locator("tr.ours").count() == 3
        assert "varR K128" in tab.inner_text("body") and "Labels saved by fisher density L80" in tab.inner_text("body")
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


def test_the_papers_curves_are_laid_over(run: Path, tmp_path: Path) -> None:
    paper = tmp_path / "paper.csv"
    paper.write_text(
        "dataset,imbalance,method,param,round,accuracy\nMNIST,100,random,,1,50.5\nMNIST,100,random,,2,52.4\n"
        "MNIST,1,random,,1,84.4\nMNIST,100,fisher_density,L80,1,71.6\nSVHN,100,random,,1,40\n"
    )
    drawn = {curve.method: curve for curve in read_runs([run], paper=paper).paper}
    assert set(drawn) == {"random", "fisher density L80"}
    assert drawn["random"].mean.tolist() == [0.505, 0.524] and drawn["random"].labels_spent.tolist() == [40, 80]


def test_settings_that_vary_are_named_and_unfinished_rounds_left_out() -> None:
    records = [
        *rounds("a", 0, (0.1, 0.2)),
        *(replace(r, start="random") for r in rounds("a", 0, (0.1, 0.2))),
        *rounds("b", 0, (0.1, 0.2)),
        *rounds("b", 1, (0.1,)),
    ]
    named = name_apart(records)
    assert methods_of(named) == ["a, ", "a, random", "b, "]
    assert [(r.method, r.seed, r.round) for r in complete(named) if r.method == "b, "] == [("b, ", 0, 1), ("b, ", 1, 1)]


def test_bad_input(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no method 'fischer density L80' in these runs. Did you mean fisher"):
        read_runs([run], ours="fischer density L80")
    with pytest.raises(ArgumentError, match="no format 'htm'. Did you mean html"):
        write_report(read_runs([run]), tmp_path / "out", ["htm"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no run"):
        read_runs([tmp_path / "empty"])
    (tmp_path / "empty" / "settings.json").write_text('{"methods": [], "rare": []}')
    with pytest.raises(DataError, match="holds no records"):
        read_runs([tmp_path / "empty"])
    broken = next((run / "records").glob("random*"))
    broken.write_text('{"method": "random"}\n')
    with pytest.raises(DataError, match="does not hold records"):
        read_runs([run])


def test_on_the_command_line(run: Path) -> None:
    result = CliRunner().invoke(cli, ["report", str(run), "--format", "csv"])
    assert result.exit_code == 0, result.output
    assert (
        "records.csv" in result.output
        and "fisher density L80 saves" in result.output
        and "too few seeds" in result.output
    )
