"""Charts: every method is there, in its own colour, as text that can be read and searched."""

from rarefish.report.charts import PALETTE, color_of, draw_curves, draw_recall, to_svg
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
