"""Draws the charts of the results pages from the tables of records beside them.

    python tools/make_charts.py                       all charts
    python tools/make_charts.py svhn_100x.png …       only these charts

In a page, `<!-- chart: FILE.csv; picture=NAME.png; ours=METHOD; … -->` requests a chart of learning curves. Columns,
`methods`, `figure` and `paper` are as in `make_results.py`. Charts of labels per class, confusion and t-SNE need the
run itself, whose records contain more than a table: `rarefish report RUN --format png`.
"""

import io
import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from make_results import FOLDER, PAPER, pages, read_wish, spent_in, wanted, wanted_baselines
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from record_tables import collect

from rarefish.io import replace_whole
from rarefish.report.charts import draw_lines
from rarefish.report.curves import by_settings, constant, curve, methods_of, name_apart, split_baselines
from rarefish.report.run_data import read_paper

SHOWS = "figures"
TITLES = {"accuracy": "Accuracy on the test set", "rare_recall": "Recall on the rare classes"}


def wished(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Returns the table and the options of every chart of a page."""
    for match in re.finditer(r"<!-- (chart: .*?) -->", page):
        _, file, wish = read_wish(match[1])
        yield file, wish


def draw(file: str, wish: dict[str, str], folder: Path = FOLDER) -> Figure:
    """Draws curves with their spread, one per method and per combination of settings that vary."""
    records, _ = collect(folder / name for name in file.split("+"))
    own, figure = by_settings(wanted(records, wish)), wish.get("figure", "accuracy")
    named, baselines = split_baselines(name_apart([*own, *wanted_baselines(records, wish)]))
    paper = read_paper(PAPER, wish["paper"], list(zip(own, named, strict=True))) if "paper" in wish else []
    methods = methods_of(named)
    curves = [curve(named, method, figure) for method in methods]
    levels = [constant(baselines, method, figure, spent_in(own)) for method in methods_of(baselines)]
    return draw_lines(curves, TITLES[figure], methods, ours=wish.get("ours", ""), paper=paper, baselines=levels)


def save(figure: Figure, path: Path) -> None:
    """Saves a chart without dates and versions, so that equal charts are equal files, with its data fingerprint."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160)
    picture = Image.open(drawn).convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE)
    told = PngInfo()
    told.add_text(SHOWS, fingerprint(figure))
    replace_whole(path, lambda file: picture.save(file, format="png", optimize=True, pnginfo=told))


def fingerprint(figure: Figure) -> str:
    """Returns a fingerprint of the curves and spreads, but not of their style, which depends on library versions."""
    lines = [(line.get_label(), _rounded(line.get_xydata())) for line in figure.axes[0].lines]
    bands = [_rounded(path.vertices) for band in figure.axes[0].collections for path in band.get_paths()]
    return sha256(repr((lines, bands)).encode()).hexdigest()


def shown_in(path: Path) -> str:
    """Returns the data fingerprint in a saved chart."""
    with Image.open(path) as picture:
        return str(picture.info.get(SHOWS))


def _rounded(numbers: Any) -> list[list[float]]:
    return np.round(np.asarray(numbers, dtype=float), 6).tolist()


def main() -> None:
    asked = set(sys.argv[1:])
    charts = [chart for page in pages() for chart in wished(page.read_text(encoding="utf-8"))]
    unknown = asked - {wish["picture"] for _, wish in charts}
    if unknown:
        raise SystemExit(f"No page asks for {', '.join(sorted(unknown))}.")
    for file, wish in charts:
        if not asked or wish["picture"] in asked:
            save(draw(file, wish), FOLDER.parent / "images" / wish["picture"])
            print(wish["picture"])


if __name__ == "__main__":
    main()
