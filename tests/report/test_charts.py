"""Charts: every method is there, in its own colour, as text that can be read and searched."""

import html
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rarefish.report.charts import (
    MOST_BANDS,
    PALETTE,
    color_of,
    draw_curves,
    draw_heatmaps,
    draw_lines,
    draw_recall,
    draw_tsne,
    save_figure,
    to_svg,
)
from rarefish.report.curves import Curve
from rarefish.report.workspace_page import draw_change, draw_mix, draw_progress
from tests.report.test_demo import RECORDS, VALUES


def test_charts_show_every_method_and_their_text_stays_text() -> None:
    svg = to_svg(draw_curves(RECORDS))
    assert all(f">{name}</text>" in svg for name in VALUES) and "Recall on the rare classes" in svg
    assert svg == to_svg(draw_curves(RECORDS))
    bars = to_svg(draw_recall(RECORDS, (1,), ["a", "b"]))
    assert bars.count("<svg") == 1


def test_a_method_has_its_own_colour_on_every_chart() -> None:
    names = ["fisher", "random", "entropy"]
    colors = [color_of(name, names) for name in names]
    assert len(set(colors)) == 3 and colors[0] == PALETTE[0] and colors[2] == PALETTE[1]


def test_ours_has_one_colour_on_all_reports_and_shares_it_with_none() -> None:
    for names in (["ours", "random", "a"], ["random", *"abcdefghijkl", "ours"]):
        colors = {name: color_of(name, names, "ours") for name in names}
        assert colors["ours"] == PALETTE[0] and len(set(colors.values())) == len(names)


@pytest.mark.parametrize(("count", "bands"), [(MOST_BANDS, MOST_BANDS), (MOST_BANDS + 1, 1)])
def test_of_many_curves_only_ours_has_its_spread(count: int, bands: int) -> None:
    names = [f"m{number}" for number in range(count)]
    curves = [Curve(name, np.array([1, 2]), np.array([[0.1, 0.2], [0.2, 0.3]]), (0, 1)) for name in names]
    axes = draw_lines(curves, "title", names, ours="m3").axes[0]
    assert len(axes.collections) == bands and len(axes.lines) == count
    widths = {line.get_label(): line.get_linewidth() for line in axes.lines}
    assert all(widths["m3"] > width for name, width in widths.items() if name != "m3")


def test_baselines_are_dashed_and_the_paper_is_dotted() -> None:
    drawn = Curve("a", np.array([10, 20]), np.array([[0.1, 0.2], [0.2, 0.3]]))
    level = Curve("trusted", np.array([10, 20]), np.array([[0.5, 0.5], [0.7, 0.7]]))
    paper = Curve("a", np.array([10, 20]), np.array([[0.3, 0.4]]))
    axes = draw_lines([drawn], "title", ["a"], paper=[paper], baselines=[level]).axes[0]
    styles = {line.get_linestyle(): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert styles == {
        "-": [[10, pytest.approx(0.15)], [20, 0.25]],
        ":": [[10, 0.3], [20, 0.4]],
        "--": [[0, pytest.approx(0.6)], [20, pytest.approx(0.6)]],
    }
    assert len({line.get_color() for line in axes.lines}) == 2  # the paper's has the colour of ours


@pytest.mark.parametrize("name", ["US$", "$^$", r"$\frac$", "a_$b$"])
def test_dollar_signs_in_names_are_drawn_as_they_are(name: str, tmp_path: Path) -> None:
    """matplotlib takes text between two of them for a formula, and a broken formula for an error."""
    records = [replace(record, method=name) for record in RECORDS if record.method == RECORDS[0].method]
    drawn = Curve(name, np.array([1, 2]), np.array([[0.1, 0.2], [0.2, 0.3]]), (0, 1))
    places = {name: (np.zeros((4, 2)), np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]))}
    found = {
        "classes": [name, "b"],
        "trainings": [
            {"labels_spent": n, "accuracy": 0.5, "balanced": 0.5, "recall": [0.1 * n, 0.5], "scored": "out of fold"}
            for n in (1, 2)
        ],
        "mix": {"validation": [0.5, 0.5], "pool": [0.2, 0.8]},
    }
    figures = [
        draw_curves(records),
        draw_recall(records, (1,), [name, "b"]),
        draw_lines([drawn], name, [name]),
        draw_heatmaps({name: np.eye(2)}, [name, "b"], ["a", name], names=(name, name), top=1.0, shown_from=0.5),
        draw_tsne(places),
        draw_progress(found, name, [0]),
        draw_change(found),
        draw_mix(found),
    ]
    for number, figure in enumerate(figures):
        assert name in html.unescape(to_svg(figure)), number
        save_figure(figure, tmp_path / f"{number}.png")
        save_figure(figure, tmp_path / f"{number}.pdf")
