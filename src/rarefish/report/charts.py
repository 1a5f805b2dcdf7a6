"""Charts as matplotlib figures, in the colorblind-safe palette of Okabe and Ito."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rarefish.active_learning.records import Record
from rarefish.report.curves import Curve, curve, methods_of

PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#332288", "#882255", "#44AA99"),
    *("#222222", "#AA4499", "#661100"),
)
OWN_COLORS = {"random": "#777777"}
BASELINE_COLORS = ("#222222", "#A0522D", "#6A5ACD", "#2E8B57")
MARKERS = "osD^vP*X"
MOST_BANDS = 8
"""With more curves, the bands would cover each other, so they are not drawn."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "rarefish",
    "text.parse_math": False,  # a dollar sign in a name does not start a formula
}


def draw_curves(records: Sequence[Record], baselines: Sequence[Record] = ()) -> Figure:
    """Draws rare-class recall and accuracy against the number of labels: mean over seeds ± one standard deviation.

    Baselines, which need no pool labels, are dashed horizontal lines.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_one(left, records, baselines, "rare_recall", "Recall on the rare classes")
        _draw_one(right, records, baselines, "accuracy", "Accuracy on all classes")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
        return figure


def draw_recall(records: Sequence[Record], rare: Sequence[int], class_names: Sequence[str]) -> Figure:
    """Draws the recall of each class after the last round: one bar per method, with a line for the range over seeds."""
    methods, last = methods_of(records), max(record.round for record in records)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.4), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(methods)
        for number, method in enumerate(methods):
            values = np.array([r.recall for r in records if r.method == method and r.round == last])
            mean, places = values.mean(axis=0), np.arange(len(class_names)) + (number - (len(methods) - 1) / 2) * width
            axes.bar(places, mean, width * 0.92, label=method, color=color_of(method, methods))
            axes.vlines(places, values.min(axis=0), values.max(axis=0), color="#222222", linewidth=1)
        for c in rare:
            axes.axvspan(c - 0.5, c + 0.5, color="#FFF3D6", zorder=0)
        axes.set_xticks(range(len(class_names)), class_names)
        axes.set_xlim(-0.5, len(class_names) - 0.5)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("class (shaded: rare in the pool)")
        axes.set_ylabel("recall")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=8, frameon=False)
        return figure


def draw_lines(
    curves: Sequence[Curve],
    title: str,
    methods: Sequence[str],
    *,
    ours: str = "",
    paper: Sequence[Curve] = (),
    baselines: Sequence[Curve] = (),
    top: float | None = None,
) -> Figure:
    """Draws one panel of curves with their spread; the paper's curves, if given, are thin dotted lines.

    A baseline, which needs no pool labels, is a dashed horizontal line at its mean over seeds.

    `methods` are all methods of the report, so that each has the same color and marker on every chart. `ours` is drawn
    with a thicker line; if there are many curves, only its spread is drawn.
    """
    has_ours = ours in [drawn.method for drawn in curves]
    is_crowded = has_ours and len(curves) > MOST_BANDS
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 5.2), layout="constrained")
        axes = figure.subplots()
        for drawn in curves:
            marker = MARKERS[list(methods).index(drawn.method) % len(MARKERS)]
            is_muted = has_ours and drawn.method != ours
            has_band = not (is_crowded and is_muted)
            color = color_of(drawn.method, methods, ours)
            _draw_curve(axes, drawn, color, marker, is_muted=is_muted, has_band=has_band)
        for drawn in paper:
            color = color_of(drawn.method, methods, ours)
            axes.plot(drawn.labels_spent, drawn.mean, color=color, linestyle=":", linewidth=1.4)
        _draw_baselines(axes, baselines, max((int(drawn.labels_spent.max()) for drawn in curves), default=1))
        axes.set_title(
            title + (" (dotted: the paper, best epoch)" if len(paper) else ""), loc="left", fontweight="bold"
        )
        axes.set_xlabel("labels")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_ylim(top=top)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        return figure


def draw_heatmaps(
    values: dict[str, np.ndarray],
    row_names: Sequence[str],
    column_names: Sequence[str],
    *,
    names: tuple[str, str],
    top: float,
    shown_from: float,
) -> Figure:
    """Draws one heat map per method, darker for larger numbers; `names` are the axis labels of columns and rows."""
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        across = min(3, len(values))
        down = -(-len(values) // across)
        width, height = 0.25 * len(column_names) + 0.7, 0.25 * len(row_names) + 0.75
        if across == 1:
            width, height = 2 * width + 0.06 * max(map(len, row_names)), 1.2 * height
        figure = Figure(figsize=(width * across + 0.4, height * down), layout="constrained")
        panels = np.atleast_1d(figure.subplots(down, across, squeeze=False)).flatten()
        for axes in panels[len(values) :]:
            axes.axis("off")
        for axes, (method, numbers) in zip(panels, values.items(), strict=False):
            axes.imshow(numbers, cmap="Blues", vmin=0, vmax=top, aspect="auto")
            for (i, j), number in np.ndenumerate(numbers):
                if number >= shown_from:
                    color = "white" if number > 0.6 * top else "#222222"
                    axes.text(j, i, f"{number:.0f}", ha="center", va="center", fontsize=6.5, color=color)
            axes.set_title(method, fontsize=9)
            axes.set_xticks(range(len(column_names)), column_names, fontsize=7)
            axes.set_yticks(range(len(row_names)), row_names, fontsize=7)
        figure.supxlabel(names[0], fontsize=9)
        figure.supylabel(names[1], fontsize=9)
        return figure


def draw_tsne(places: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """Draws a t-SNE map per method, colored by true class; small dots are correct predictions, large ones are wrong."""
    palette = mpl.colormaps["tab10"]
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        columns = min(3, len(places)) if len(places) != 4 else 2
        rows = -(-len(places) // columns)
        figure = Figure(figsize=(3.3 * columns, 3.5 * rows), layout="constrained")
        panels = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).flatten()
        for axes in panels:
            axes.axis("off")
        for axes, (method, (xy, truth, answers)) in zip(panels, places.items(), strict=False):
            for c in np.unique(truth):
                right, wrong = (truth == c) & (answers == c), (truth == c) & (answers != c)
                axes.scatter(*xy[right].T, s=2, color=palette(int(c) % 10), linewidths=0, label=str(c))
                axes.scatter(*xy[wrong].T, s=16, color=palette(int(c) % 10), edgecolors="black", linewidths=0.4)
            axes.set_title(f"{method}: {(truth == answers).mean():.0%} correct", fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=10, frameon=False, markerscale=4, fontsize=8)
        return figure


def color_of(method: str, methods: Sequence[str], ours: str = "") -> str:
    """Returns the color of a method, which is the same on every chart; our method always has the first color."""
    ranked = sorted((m for m in methods if m not in OWN_COLORS), key=lambda m: m != ours)
    return OWN_COLORS[method] if method in OWN_COLORS else PALETTE[ranked.index(method) % len(PALETTE)]


def to_svg(figure: Figure) -> str:
    """Returns the chart as SVG to embed in a page."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_figure(figure: Figure, path: Path) -> None:
    """Saves the chart as an image or a PDF file."""
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=160)


def _draw_curve(
    axes: Axes, drawn: Curve, color: str, marker: str, *, is_muted: bool = False, has_band: bool = True
) -> None:
    least = 0 if drawn.values.min() >= 0 else -1  # fractions, or differences of fractions
    low, high = np.clip([drawn.mean - drawn.std, drawn.mean + drawn.std], least, 1)
    if has_band:
        axes.fill_between(drawn.labels_spent, low, high, color=color, alpha=0.15, linewidth=0)
    size, width, height = (4, 1.2, 2) if is_muted else (5, 2, 3)
    axes.plot(
        *(drawn.labels_spent, drawn.mean),
        **{"color": color, "marker": marker, "markersize": size, "linewidth": width, "label": drawn.method},
        zorder=height,
    )


def _draw_baselines(axes: Axes, baselines: Sequence[Curve], last: int) -> None:
    """Draws a dashed horizontal line per baseline, from 0 labels to the last number of labels."""
    for number, drawn in enumerate(baselines):
        color, height = BASELINE_COLORS[number % len(BASELINE_COLORS)], float(drawn.mean[0])
        axes.plot([0, last], [height, height], color=color, linestyle="--", linewidth=1.6, label=drawn.method)


def _draw_one(axes: Axes, records: Sequence[Record], baselines: Sequence[Record], figure: str, title: str) -> None:
    methods = methods_of(records)
    for number, method in enumerate(methods):
        drawn = curve(records, method, figure)
        _draw_curve(axes, drawn, color_of(method, methods), MARKERS[number % len(MARKERS)])
    levels = [curve(baselines, method, figure) for method in methods_of(baselines)]
    _draw_baselines(axes, levels, max(record.labels_spent for record in records))
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("labels")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xticks(sorted({record.labels_spent for record in records}) if len(records) < 200 else axes.get_xticks())
    axes.set_ylim(0, 1)
