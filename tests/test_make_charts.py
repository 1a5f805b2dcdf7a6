"""Charts of the results pages: drawn from the tables that the pages show."""

import re
from dataclasses import replace
from pathlib import Path

import make_charts
import numpy as np
import pytest

from rarefish.active_learning.records import Record, to_csv

FIRST = Record(
    method="random",
    seed=0,
    round=1,
    labels_spent=10,
    accuracy=0.25,
    rare_recall=0.0,
    recall=(),
    new_labels=(),
    select_s=0.0,
    train_s=0.0,
    validation_size=100,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = [
        replace(FIRST, seed=seed, round=r, labels_spent=10 * r, accuracy=0.25 * r + 0.125 * seed, validation_size=size)
        for size in (100, 300)
        for seed in (0, 1)
        for r in (1, 2)
    ]
    (tmp_path / "some.csv").write_text(to_csv(records))
    return tmp_path


def test_a_chart_shows_the_means_of_its_table(folder: Path) -> None:
    figure = make_charts.draw("some.csv", {"validation_size": "300"}, folder)
    (line,) = figure.axes[0].lines
    assert np.asarray(line.get_xydata()).tolist() == [[10, 0.3125], [20, 0.5625]]


def test_settings_that_vary_are_curves_of_their_own(folder: Path) -> None:
    figure = make_charts.draw("some.csv", {"figure": "rare_recall"}, folder)
    assert [line.get_label() for line in figure.axes[0].lines] == ["random, M=100", "random, M=300"]
    assert figure.axes[0].get_title(loc="left") == "Recall on the rare classes"


def test_baselines_are_dashed_lines_of_a_chart(folder: Path) -> None:
    records = [
        replace(
            FIRST,
            method="trusted",
            round=0,
            labels_spent=0,
            accuracy=0.5 + 0.25 * seed,
            seed=seed,
            validation_size=size,
        )
        for size in (100, 300)
        for seed in (0, 1)
    ]
    path = folder / "some.csv"
    path.write_text(path.read_text() + to_csv(records).partition("\n")[2])
    curve, line = make_charts.draw("some.csv", {"validation_size": "300", "methods": "random"}, folder).axes[0].lines
    assert curve.get_label() == "random" and (line.get_label(), line.get_linestyle()) == ("trusted", "--")
    assert np.asarray(line.get_xydata()).tolist() == [[0, 0.625], [20, 0.625]]
    both = make_charts.draw("some.csv", {}, folder).axes[0].lines
    assert [line.get_label() for line in both[2:]] == ["trusted, M=100", "trusted, M=300"]


def test_the_same_chart_is_the_same_file(folder: Path) -> None:
    for name in ("a.png", "b.png"):
        make_charts.save(make_charts.draw("some.csv", {}, folder), folder / name)
    assert (folder / "a.png").read_bytes() == (folder / "b.png").read_bytes()


def test_a_chart_tells_whether_its_table_is_another(folder: Path) -> None:
    make_charts.save(make_charts.draw("some.csv", {}, folder), folder / "chart.png")
    assert make_charts.shown_in(folder / "chart.png") == make_charts.fingerprint(
        make_charts.draw("some.csv", {}, folder)
    )
    (folder / "some.csv").write_text((folder / "some.csv").read_text().replace("0.625", "0.626"))
    assert make_charts.shown_in(folder / "chart.png") != make_charts.fingerprint(
        make_charts.draw("some.csv", {}, folder)
    )


@pytest.mark.parametrize("page", sorted(make_charts.FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_charts_of_a_page_stand_below_their_wish_and_are_those_of_the_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, wish in make_charts.wished(text):
        name, drawn = wish["picture"], make_charts.draw(file, wish)
        assert re.search(rf"picture={re.escape(name)}; .*? -->\n\n!\[[^]]+\]\(\.\./images/{re.escape(name)}\)", text)
        labels = [str(line.get_label()) for line in drawn.axes[0].lines]
        assert all(any(label.startswith(method) for label in labels) for method in wish["methods"].split("|"))
        records, _ = make_charts.collect(make_charts.FOLDER / part for part in file.split("+"))
        dashed = {str(line.get_label()) for line in drawn.axes[0].lines if line.get_linestyle() == "--"}
        baselines = {record.method for record in make_charts.wanted_baselines(records, wish)}
        assert {label.partition(", M=")[0] for label in dashed} == baselines
        shown = make_charts.shown_in(make_charts.FOLDER.parent / "images" / name)
        assert shown == make_charts.fingerprint(drawn), f"{name}: run `python tools/make_charts.py {name}`"
