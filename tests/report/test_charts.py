"""Charts: every method is there, in its own colour, as text that can be read and searched."""

import numpy as np
import pytest

from rarefish.report.charts import MOST_BANDS, PALETTE, color_of, draw_curves, draw_lines, draw_recall, to_svg
from rarefish.report.curves import Curve
from tests.report.test_pages import RECORDS, VALUES


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
