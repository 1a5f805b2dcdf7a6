"""Charts of the results pages: drawn from the tables that the pages show."""

import re
from dataclasses import replace
from pathlib import Path

import make_charts
import numpy as np
import pytest

from rarefish.records import Record, to_csv

FIRST = Record(
    method="random",
    seed=0,
    round=1,
    labels_spent=10,
    accuracy=0.25,
    rare_recall=0.0,
    recall=(),
    bought=(),
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


def test_the_same_chart_is_the_same_file(folder: Path) -> None:
    for name in ("a.png", "b.png"):
        make_charts.save(make_charts.draw("some.csv", {}, folder), folder / name)
    assert (folder / "a.png").read_bytes() == (folder / "b.png").read_bytes()


@pytest.mark.parametrize("page", sorted(make_charts.FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_what_a_page_asks_for_stands_below_and_can_be_drawn(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, wish in make_charts.wished(text):
        assert re.search(
            rf"picture={re.escape(wish['picture'])}; .*? -->\n\n!\[[^]]+\]\(\.\./images/{wish['picture']}\)", text
        )
        assert (make_charts.FOLDER.parent / "images" / wish["picture"]).exists()
        drawn = {str(line.get_label()) for line in make_charts.draw(file, wish).axes[0].lines}
        assert {
            method for method in wish["methods"].split("|") if not any(d.startswith(method) for d in drawn)
        } == set()
