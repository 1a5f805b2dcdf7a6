"""The page of the field test: a table of all rounds, and the tables and the chart of the page made from it.

    python tools/make_field.py runs/field                        writes docs/results/field.csv, the page and the chart
    python tools/make_field.py runs/more docs/results/field.csv  adds a run to what was there
    python tools/make_field.py                                   regenerates the page and the chart

In the page and in README, `<!-- field: NAME -->` up to `<!-- end -->` is replaced by a table: `summary`, `settings`,
`short` or `methods`.
If several sources contain a cell, the first one is used. Only seeds for which all rounds are complete are compared.
"""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import matplotlib as mpl
import numpy as np
from make_charts import save
from make_results import FOLDER, markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rarefish.active_learning.records import read_records
from rarefish.experiments.frozen_features import LIMIT, OURS, read_setting
from rarefish.io import write_whole
from rarefish.report.charts import PALETTE, STYLE
from rarefish.report.curves import Curve, labels_to_reach, of_seeds
from rarefish.report.statistics import Comparison, compare, p_text

COLUMNS = (
    *("dataset", "imbalance", "per_class", "trusted", "method", "ours", "limit", "seed", "round", "labels_spent"),
    *("accuracy", "macro_recall", "rare_recall", "select_s", "commit"),
)
PAGES = (FOLDER / "field.md", FOLDER.parents[1] / "README.md")
PICTURE, SHORT_PICTURE = "field.png", "field_short.png"
"""The chart of all settings, and that of the README."""
REFERENCE = "badge"
"""The method with which the numbers of labels are compared."""
EARLIER = "fisher_posterior"
"""The default of earlier versions."""
DRAWN = (OURS, "badge", "uherding", "typiclust", "posterior_likeliest", EARLIER, "random")
"""Methods with a color in the chart; the limit is dashed, and the other methods are thin gray lines."""
NEVER_BALANCED = ("caltech_100",)
"""Datasets whose classes have different sizes without a cut."""

Row = dict[str, str]


@dataclass(frozen=True, order=True)
class Key:
    """A setting of the field test."""

    dataset: str
    imbalance: int
    per_class: int
    trusted: str

    @property
    def is_balanced(self) -> bool:
        return self.imbalance == 1 and self.dataset not in NEVER_BALANCED

    @property
    def pool(self) -> str:
        return f"{self.dataset} {self.imbalance}×"


def rows_of(source: Path) -> list[Row]:
    """Returns the rows of a run or of a table."""
    if source.suffix == ".csv":
        with source.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    return [row for path in sorted(source.glob("*/setting.json")) for row in rows_of_setting(path)]


def rows_of_setting(path: Path) -> list[Row]:
    """Returns the rows of a setting, given its setting.json."""
    setting = read_setting(path)
    rows = []
    for records in sorted((path.parent / "records").glob("*.jsonl")):
        for record in read_records(records):
            values = {
                **{name: setting[name] for name in ("dataset", "imbalance", "per_class", "trusted")},
                **{name: getattr(record, name) for name in ("method", "seed", "round", "labels_spent", "commit")},
                **{name: f"{getattr(record, name):.6g}" for name in ("accuracy", "rare_recall", "select_s")},
                "macro_recall": f"{float(np.nanmean(record.recall)):.6g}",
                "ours": record.method == OURS,
                "limit": record.method == LIMIT,
            }
            rows.append({name: str(values[name]) for name in COLUMNS})
    return rows


def join(sources: Iterable[Sequence[Row]]) -> list[Row]:
    """Returns the rows of all sources in order; of a cell in several sources, those of the first that has it."""
    cells: dict[tuple[str, ...], list[Row]] = {}
    for rows in sources:
        own: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            own.setdefault((*(row[name] for name in COLUMNS[:5]), row["seed"]), []).append(row)
        cells = own | cells
    order = (key_of, lambda row: row["method"], lambda row: int(row["seed"]), lambda row: int(row["round"]))
    return sorted((row for rows in cells.values() for row in rows), key=lambda row: [part(row) for part in order])


def key_of(row: Row) -> Key:
    return Key(row["dataset"], int(row["imbalance"]), int(row["per_class"]), row["trusted"])


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class Field:
    """The curves of macro recall in one setting."""

    key: Key
    curves: dict[str, Curve]
    baseline: float
    """Macro recall of the head fitted to the trusted images only; NaN if it was not measured."""

    @property
    def rivals(self) -> list[Curve]:
        return [curve for name, curve in self.curves.items() if name not in (OURS, LIMIT)]

    def compared(self) -> list[Comparison]:
        """Returns how far ours is ahead of each rival, mean over rounds, best rival first; empty without ours."""
        if OURS not in self.curves:
            return []
        return sorted(compare(self.curves[OURS], self.rivals), key=lambda found: found.difference)

    def against(self, method: str) -> tuple[Curve, Curve] | None:
        """Returns our curve and that of a method, over the seeds of both."""
        ours, other = self.curves.get(OURS), self.curves.get(method)
        shared = [seed for seed in ours.seeds if seed in other.seeds] if ours and other else []
        return (of_seeds(ours, shared), of_seeds(other, shared)) if ours and other and shared else None

    def labels_needed(self) -> float:
        """Returns the fraction of its labels with which ours reaches the reference's final recall, or NaN."""
        both = self.against(REFERENCE)
        return labels_to_reach(float(both[1].mean[-1]), both[0]) / both[1].labels_spent[-1] if both else np.nan

    def gap(self, method: str) -> float:
        """Returns the macro recall of the limit minus that of a method, mean over rounds and shared seeds."""
        limit, other = self.curves.get(LIMIT), self.curves.get(method)
        shared = [seed for seed in limit.seeds if seed in other.seeds] if limit and other else []
        if not limit or not other or not shared:
            return np.nan
        return float(of_seeds(limit, shared).values.mean() - of_seeds(other, shared).values.mean())


def fields_of(rows: Sequence[Row]) -> list[Field]:
    """Returns the curves of each setting, for the seeds that have all rounds."""
    settings: dict[Key, dict[str, dict[int, dict[int, Row]]]] = {}
    for row in rows:
        of_method = settings.setdefault(key_of(row), {}).setdefault(row["method"], {})
        of_method.setdefault(int(row["seed"]), {})[int(row["round"])] = row
    found = []
    for key, methods in sorted(settings.items()):
        last = max(number for seeds in methods.values() for rounds in seeds.values() for number in rounds)
        curves, baseline = {}, np.nan
        for method, seeds in methods.items():
            if all(set(rounds) == {0} for rounds in seeds.values()):
                baseline = mean(float(rounds[0]["macro_recall"]) for rounds in seeds.values())
                continue
            whole = {seed: rounds for seed, rounds in sorted(seeds.items()) if set(rounds) == set(range(1, last + 1))}
            if whole:
                curves[method] = _curve(method, whole)
        found.append(Field(key, curves, baseline))
    return found


def _curve(method: str, seeds: dict[int, dict[int, Row]]) -> Curve:
    def values(column: str) -> np.ndarray:
        return np.array([[float(rounds[r][column]) for r in sorted(rounds)] for rounds in seeds.values()])

    return Curve(method, values("labels_spent")[0], values("macro_recall"), tuple(seeds))


def summary(fields: Sequence[Field]) -> str:
    """Returns the number of settings in which ours is ahead of its best rival, level with it, or behind it.

    Settings with fewer than `MIN_SEEDS` seeds are left out.
    """
    lines: list[tuple[str, ...]] = [
        (
            *("trusted set", "pool", "settings", "ahead", "level", "behind", "smallest difference"),
            *("labels needed to match BADGE's final recall", "gap to the limit", "gap of the earlier default"),
        )
    ]
    for trusted in ("trained", "withheld"):
        for is_balanced in (False, True):
            own = [
                f for f in _with_enough_seeds(fields) if (f.key.trusted, f.key.is_balanced) == (trusted, is_balanced)
            ]
            if not own:
                continue
            verdicts = [verdict(field.compared()[0]) for field in own]
            counts = (str(verdicts.count(word)) for word in ("ahead", "level", "behind"))
            names = {"trained": "trained on", "withheld": "withheld"}[trusted], "balanced" if is_balanced else "other"
            least = f"{100 * min(field.compared()[0].difference for field in own):+.1f}"
            gaps = (_mean_text([field.gap(name) for field in own], "+.1f") for name in (OURS, EARLIER))
            share = _mean_text([field.labels_needed() for field in own], ".0f", " %")
            lines.append((*names, str(len(own)), *counts, least, share, *gaps))
    return markdown(lines)


def verdict(found: Comparison) -> str:
    """Returns whether ours is ahead of a rival or behind it (p < 0.05), or level with it."""
    return "level" if not found.p < 0.05 else "ahead" if found.difference > 0 else "behind"


def _mean_text(values: Sequence[float], style: str, unit: str = "") -> str:
    """Returns the mean of fractions in percent; without those that are unknown."""
    known = [value for value in values if not np.isnan(value)]
    if not known:
        return "–"
    if np.isinf(known).any():
        return f"not reached in {int(np.isinf(known).sum())}"
    return f"{100 * mean(known):{style}}{unit}"


SETTINGS = (
    *("pool", "M", "trusted set", "trusted only", "ours", "seeds", "best rival", "difference (95 % interval)", "p", ""),
    *("BADGE", "labels needed to match BADGE's final recall", "gap to the limit", "gap of the earlier default"),
)
"""Columns of the table of settings."""
SHORT = ("pool", "M", "trusted set", "trusted only", "ours", "best rival", "difference (95 % interval)", "p")
"""Columns of the table in the README, which contains the settings with at least `MIN_SEEDS` seeds."""
MIN_SEEDS = 5


def settings_table(fields: Sequence[Field]) -> str:
    """Returns one row per setting: ours, the best rival, and the limit."""
    return markdown([SETTINGS, *map(_setting_row, _compared(fields))])


def short_table(fields: Sequence[Field]) -> str:
    """Returns the most important columns of the settings with enough seeds."""
    rows = [_setting_row(field) for field in _with_enough_seeds(fields)]
    places = [SETTINGS.index(name) for name in SHORT]
    return markdown([SHORT, *(tuple(row[place] for place in places) for row in rows)])


def _compared(fields: Sequence[Field]) -> list[Field]:
    return [field for field in fields if field.compared()]


def _with_enough_seeds(fields: Sequence[Field]) -> list[Field]:
    return [field for field in _compared(fields) if field.compared()[0].num_seeds >= MIN_SEEDS]


def _setting_row(field: Field) -> tuple[str, ...]:
    best, key, badge = field.compared()[0], field.key, field.against(REFERENCE)
    return (
        *(key.pool, str(key.per_class), key.trusted, _percent(field.baseline)),
        *(_percent(float(field.curves[OURS].values.mean())), str(best.num_seeds), best.rival),
        *(f"{best.points} ({best.interval})", p_text(best.p), verdict(best)),
        _percent(float(badge[1].values.mean())) if badge else "–",
        _mean_text([field.labels_needed()], ".0f", " %").replace(" in 1", ""),
        *(_mean_text([field.gap(name)], "+.1f") for name in (OURS, EARLIER)),
    )


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f}"


def methods_tables(fields: Sequence[Field]) -> str:
    """Returns a table per pool and use of the trusted set: macro recall of each method, and how far ours is ahead."""
    groups: dict[tuple[str, str], list[Field]] = {}
    for field in fields:
        groups.setdefault((field.key.pool, field.key.trusted), []).append(field)
    parts = []
    for (pool, trusted), own in groups.items():
        heads = [(f"M = {field.key.per_class}", "ours ahead by (95 % interval)", "p") for field in own]
        names = dict.fromkeys(name for field in own for name in field.curves)
        names = sorted(names, key=lambda name: -max(_mean_of(field, name) for field in own))
        lines = [("method", *(cell for head in heads for cell in head))]
        for name in names:
            lines.append((name, *(cell for field in own for cell in _cells(field, name))))
        what = "trained on" if trusted == "trained" else "withheld"
        parts.append(f"### {pool}, trusted set {what}\n\n{markdown(lines)}")
    return "\n\n".join(parts)


def _mean_of(field: Field, method: str) -> float:
    return float(field.curves[method].values.mean()) if method in field.curves else -1.0


def _cells(field: Field, method: str) -> tuple[str, str, str]:
    if method not in field.curves:
        return "–", "", ""
    value = _percent(_mean_of(field, method))
    found = {one.rival: one for one in field.compared()}.get(method)
    return (value, f"{found.points} ({found.interval})", p_text(found.p)) if found else (value, "", "")


TABLES: dict[str, Callable[[Sequence[Field]], str]] = {
    "summary": summary,
    "settings": settings_table,
    "short": short_table,
    "methods": methods_tables,
}


def make_page(text: str, fields: Sequence[Field]) -> str:
    """Returns the page with its tables made from the fields."""

    def fill(match: re.Match[str]) -> str:
        table = TABLES[match[1]](fields) if fields else "Not run yet."
        return f"<!-- field: {match[1]} -->\n\n{table}\n\n<!-- end -->"

    return re.sub(r"<!-- field: (\w+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def draw(fields: Sequence[Field]) -> Figure:
    """Draws the macro recall of all methods: a row of panels per pool, and a column per trusted set."""
    pools = list(dict.fromkeys(field.key.pool for field in fields))
    columns = sorted({(field.key.trusted, field.key.per_class) for field in fields})
    with mpl.rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(2.4 * len(columns) + 0.6, 1.9 * len(pools) + 0.9), layout="constrained")
        panels = figure.subplots(len(pools), len(columns), squeeze=False)
        for axes in panels.flat:
            axes.set_visible(False)
        for field in fields:
            place = pools.index(field.key.pool), columns.index((field.key.trusted, field.key.per_class))
            _draw_panel(panels[place], field)
        shown = {
            label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        names = [name for name in (*DRAWN, LIMIT, "trusted only", "others") if name in shown]
        figure.supxlabel("labels")
        figure.supylabel("macro recall on the test set")
        how = {"loc": "outside upper center", "ncols": min(len(names), 2 * len(columns)), "frameon": False}
        figure.legend([shown[name] for name in names], names, **how)
        return figure


def _draw_panel(axes: Axes, field: Field) -> None:
    axes.set_visible(True)
    for name, curve in field.curves.items():
        how = {"color": "#BBBBBB", "linewidth": 0.6, "zorder": 1, "label": "others"}
        if name == LIMIT:
            how = {"color": "#222222", "linewidth": 1.2, "linestyle": "--", "zorder": 3, "label": name}
        elif name == OURS:
            how = {"color": PALETTE[0], "linewidth": 2.2, "zorder": 4, "label": name}
        elif name in DRAWN:
            color = "#777777" if name == "random" else PALETTE[DRAWN.index(name)]
            how = {"color": color, "linewidth": 1.1, "zorder": 2, "label": name}
        axes.plot(curve.labels_spent, curve.mean, **how)  # pyright: ignore[reportArgumentType]
    if not np.isnan(field.baseline):
        axes.axhline(field.baseline, color="#A0522D", linestyle=":", linewidth=0.9, label="trusted only")
    what = "trained on" if field.key.trusted == "trained" else "withheld"
    axes.set_title(f"{field.key.pool}, M = {field.key.per_class}, {what}", fontsize=6.5, loc="left")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    table = FOLDER / "field.csv"
    if len(sys.argv) > 1:
        write_whole(table, to_csv(join(map(rows_of, map(Path, sys.argv[1:])))))
    fields = fields_of(rows_of(table)) if table.exists() else []
    for page in PAGES:
        page.write_text(make_page(page.read_text(encoding="utf-8"), fields), encoding="utf-8")
    for name, shown in ((PICTURE, fields), (SHORT_PICTURE, _with_enough_seeds(fields))):
        if shown:
            save(draw(shown), FOLDER.parent / "images" / name)


if __name__ == "__main__":
    main()
