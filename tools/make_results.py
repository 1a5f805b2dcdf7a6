"""Generates the tables of the results pages from the tables of records beside them.

    python tools/make_results.py mnist runs/imbalanced runs/balanced …   writes docs/results/mnist.csv and its tables
    python tools/make_results.py mnist runs/more docs/results/mnist.csv  adds a run to the existing records
    python tools/make_results.py                                         regenerates the tables of all pages

In a page, a table stands between `<!-- KIND: FILE.csv; OPTION=VALUE; … -->` and `<!-- end -->`. The kinds are:

    table   accuracy by round
    ahead   lead of `ours=METHOD` over each other method, mean over rounds
    saved   the same lead, and the labels that METHOD saves
    best    lead of `ours=METHOD` over the best other method of each round
    total   accuracy by the number of all labels, including the trusted ones; `both=FILE.csv` adds the methods of
            another file, whose models are also trained on the trusted images
    paper   distance from the curves of the paper, which `paper=mnist` selects
    time    cost of a round with `ours=METHOD`, in seconds and in passes of an image through a network, which are in
            FILE_passes.csv
    speed   results of a benchmark (FILE.json): its baselines, and how many times faster our code is
    prior   results of `benchmarks/pool_prior.py` by variant and validation size, with `imbalance=VALUE`
    cost    time of a selection according to the cost model (`cost: MODEL`), from the rates that benchmarks measured

Baselines, which need no pool label, are rows of the tables that compare methods, and lines of all charts.
`A.csv+B.csv` reads both files; if both contain a cell, the first one counts. Options: `COLUMN=VALUE` selects records,
`methods=A|B` selects methods, `figure=best_accuracy` shows another column than the accuracy, `paper=mnist` adds the
paper's values below ours, and `all_rounds` shows every round. `inline_figures.py` describes the figures in sentences;
`make_charts.py` describes the kind `chart`.
"""

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from inline_figures import fill_figures
from record_tables import Passes, collect, passes_key, write_passes

from rarefish.active_learning.records import COLUMNS, Record, to_csv
from rarefish.io import write_whole
from rarefish.report.curves import (
    Curve,
    complete,
    constant,
    curve,
    labels_saved,
    labels_to_reach,
    methods_of,
    of_seeds,
    split_baselines,
)
from rarefish.report.run_data import read_paper
from rarefish.report.statistics import Comparison, Saving, compare, compare_labels, end_text, needed_text, p_text

FOLDER = Path(__file__).parent.parent / "docs" / "results"
BENCHMARKS = FOLDER.parents[1] / "benchmarks" / "results"
PAPER = FOLDER / "paper_curves.csv"
ROUNDS = (1, 2, 3, 4, 5, 7, 10)
TOLERANCE = 1.5
"""Factor by which an estimated share may be wrong to count as near the true one."""
NUM_CENTERS = 15_000
"""Approximate failures of a ResNet-18 on the 50,000 validation images of ImageNet, for the cost model."""


def pages() -> list[Path]:
    """Returns all pages that may contain generated tables."""
    return [FOLDER.parents[1] / "README.md", *sorted(FOLDER.glob("*.md"))]


def make_tables(text: str, folder: Path = FOLDER) -> str:
    """Returns the page with all its tables updated."""

    def fill(match: re.Match[str]) -> str:
        kind, file, wish = read_wish(match[1])
        if kind == "prior":
            return f"<!-- {match[1]} -->\n\n{prior_table(folder / file, wish)}\n\n<!-- end -->"
        if kind in OF_BENCHMARKS:
            return f"<!-- {match[1]} -->\n\n{OF_BENCHMARKS[kind](file)}\n\n<!-- end -->"
        records, passes = collect(folder / name for name in file.split("+"))
        table = time_table(records, passes, wish) if kind == "time" else OF_RECORDS[kind](records, wish)
        return f"<!-- {match[1]} -->\n\n{table}\n\n<!-- end -->"

    filled = re.sub(
        r"<!-- ((?:table|total|paper|saved|ahead|best|time|speed|cost|prior): .*?) -->.*?<!-- end -->",
        fill,
        text,
        flags=re.DOTALL,
    )
    return fill_figures(filled, folder)


def read_wish(asked: str) -> tuple[str, str, dict[str, str]]:
    """Parses the marker of a table: its kind, its file and the other options by name."""
    kind, file, *wishes = [part.strip() for part in re.split(r"[:;]", asked)]
    return kind, file, {part.partition("=")[0]: part.partition("=")[2] for part in wishes}


def accuracy_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns mean ± standard deviation in percent after each round, one row per method."""
    own, figure = wanted(records, wish), wish.get("figure", "accuracy")
    paper = read_paper(PAPER, wish["paper"], list(zip(own, own, strict=True))) if "paper" in wish else []
    papers = {drawn.method: drawn for drawn in paper}
    rounds = rounds_shown(own, wish)
    levels = wanted_levels(records, wish, own)
    before = ["0"] if levels else []
    lines: list[tuple[str, ...]] = [("method", "n", *before, *map(str, rounds))]
    for drawn in levels:
        lines.append((drawn.method, str(len(drawn.values)), _spread(drawn)[0], *("" for _ in rounds)))
    for method in methods_of(own):
        drawn = curve(own, method, figure)
        lines.append((method, str(len(drawn.values)), *("" for _ in before), *_at(rounds, _spread(drawn))))
        if method in papers:
            theirs = [f"{100 * value:.1f}" for value in papers[method].mean]
            lines.append(("· the paper", "", *("" for _ in before), *_at(rounds, theirs)))
    made_at = commits_text([*wanted_baselines(records, wish), *own]) if figure == "accuracy" else ""
    return f"{markdown(lines)}{made_at}"


def rounds_shown(own: Sequence[Record], wish: dict[str, str]) -> list[int]:
    """Returns the rounds of a table: some of them, and the last one."""
    last = max(record.round for record in own)
    return sorted({last, *(number for number in range(1, last) if number in ROUNDS or "all_rounds" in wish)})


def commits_text(records: Sequence[Record]) -> str:
    """Returns a line with the commit at which each row was made."""
    methods: dict[str, list[str]] = {}
    for method in methods_of(records):
        found = sorted({record.commit or "not recorded" for record in records if record.method == method})
        methods.setdefault(" and ".join(found), []).append(method)
    if len(methods) == 1:
        return f"\n\nCommit of all rows: {next(iter(methods))}."
    most = max(methods, key=lambda commit: len(methods[commit]))
    others = "; ".join(f"{', '.join(methods[commit])}: {commit}" for commit in methods if commit != most)
    return f"\n\nCommits: {others}; all other rows: {most}."


def total_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the accuracy by the number of all labels, the trusted ones included.

    The methods of the table `both`, if given, also train their model on the trusted images. The last column says what
    the trusted labels of a row are used for.
    """
    own = wanted(records, wish)
    num_trusted, *others = {record.validation_size for record in own}
    if others:
        raise SystemExit(f"A table by total labels needs one validation size, not {[num_trusted, *others]}.")
    spent = sorted({record.labels_spent for record in own if record.round in rounds_shown(own, wish)})
    lines: list[tuple[str, ...]] = [
        ("method", "n", *(f"{num_trusted + labels:,}" for labels in (0, *spent)), "trusted labels")
    ]
    for drawn in wanted_levels(records, wish, own):
        lines.append((drawn.method, str(len(drawn.values)), _spread(drawn)[0], *("" for _ in spent), "train the model"))
    for method in methods_of(own):
        lines.append(_total_row(method, curve(own, method, "accuracy"), spent, use_of_trusted(own, method)))
    if "both" in wish:
        also = wanted(collect([FOLDER / wish["both"]])[0], {k: v for k, v in wish.items() if k != "methods"})
        for method in methods_of(also):
            name = f"{method}, trained on both"
            lines.append(_total_row(name, curve(also, method, "accuracy"), spent, "train the model"))
    return markdown(lines)


def _total_row(name: str, drawn: Curve, spent: Sequence[int], use: str) -> tuple[str, ...]:
    found = dict(zip(drawn.labels_spent.tolist(), _spread(drawn), strict=True))
    return name, str(len(drawn.values)), "", *(found.get(labels, "") for labels in spent), use


def use_of_trusted(records: Sequence[Record], method: str) -> str:
    """Returns what a method uses the trusted labels for, if it does."""
    first = next(record for record in records if record.method == method)
    return "choose" if first.kernel or first.labels else "not used"


def distance_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns our mean minus the paper's accuracy after each round, in points, and in standard errors of our mean."""
    own = wanted(records, wish)
    papers = {drawn.method: drawn for drawn in read_paper(PAPER, wish["paper"], list(zip(own, own, strict=True)))}
    rounds = [number for number in range(1, max(record.round for record in own) + 1) if number in ROUNDS]
    lines = [("method", "n", *map(str, rounds))]
    for method in methods_of(own):
        drawn = curve(own, method, wish.get("figure", "accuracy"))
        theirs = papers[method].mean
        cells = [
            f"{100 * (m - p):+.1f} (z {(m - p) / (s / len(drawn.values) ** 0.5):+.1f})"
            for m, s, p in zip(drawn.mean, drawn.std, theirs, strict=False)
        ]
        lines.append((method, str(len(drawn.values)), *_at(rounds, cells)))
    return markdown(lines)


def saved_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the lead of `ours` over each other method and the labels that it saves, with intervals."""
    ours, rivals, levels = ours_and_rivals(records, wish)
    found = {one.rival: one for one in compare_labels(ours, rivals)}
    lines: list[tuple[str, ...]] = [
        (
            *("against", "points ahead (95 % interval)", "p after Holm", "labels saved (95 % interval)"),
            *("levels not reached", "accuracies compared", "at its final accuracy"),
        )
    ]
    for lead in compare(ours, [*levels, *rivals]):
        cells = _as_good(ours, levels, lead.rival) or _saving(ours, rivals, lead.rival, found)
        lines.append((lead.rival, _lead(lead), p_text(lead.p_corrected), *cells))
    return markdown(lines)


def ours_and_rivals(records: Sequence[Record], wish: dict[str, str]) -> tuple[Curve, list[Curve], list[Curve]]:
    """Returns our curve, those of the other methods, and those of the baselines."""
    own = wanted(records, wish)
    others = [curve(own, method, "accuracy") for method in methods_of(own) if method != wish["ours"]]
    return curve(own, wish["ours"], "accuracy"), others, wanted_levels(records, wish, own)


def _as_good(ours: Curve, levels: Sequence[Curve], name: str) -> tuple[str, ...]:
    """Returns the cells of a baseline, which needs no pool label: the labels after which we are as good as it."""
    for baseline in levels:
        if baseline.method == name:
            needed = needed_text(labels_to_reach(float(baseline.mean[0]), ours))
            return "–", "–", f"{100 * baseline.mean[0]:.1f} %", needed if "not" in needed else f"after {needed} labels"
    return ()


def _lead(found: Comparison) -> str:
    return f"{found.points} ({found.interval})"


def _saving(ours: Curve, rivals: Sequence[Curve], name: str, found: dict[str, Saving]) -> tuple[str, ...]:
    """Returns the cells about labels saved; a rival that never exceeds our first accuracy has only the last one."""
    (rival,) = (rival for rival in rivals if rival.method == name)
    if rival.method in found:
        one = found[rival.method]
        return f"{one.share} ({one.interval})", one.missed, one.levels, one.end
    return "–", "–", "–", end_text(labels_saved(ours, rival), is_bound=bool(rival.mean[-1] < ours.mean[0]))


def best_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the lead of `ours` over the best other method per round, with the standard error over paired seeds."""
    own = wanted(records, wish)
    curves = {method: curve(own, method, "accuracy") for method in methods_of(own)}
    ours = curves.pop(wish["ours"])
    levels = wanted_levels(records, wish, own)
    heads = (f"ahead of {level.method} ({100 * level.mean[0]:.1f})" for level in levels)
    lines: list[tuple[str, ...]] = [
        ("round", "ours", "best other", "its accuracy", "ours ahead by", "standard error", *heads)
    ]
    for row, accuracy in enumerate(ours.mean):
        rival = max(curves.values(), key=lambda one: one.mean[row])
        shared = [seed for seed in ours.seeds if seed in rival.seeds]
        ahead = of_seeds(ours, shared).values[:, row] - of_seeds(rival, shared).values[:, row]
        figures = accuracy, rival.mean[row], ahead.mean(), ahead.std(ddof=1) / len(ahead) ** 0.5
        mine, its, by, error = (f"{round(100 * figure, 1) + 0:.1f}" for figure in figures)
        above = (f"{100 * (accuracy - level.mean[0]):.1f}" for level in levels)
        lines.append((str(row + 1), mine, rival.method, its, by, error, *above))
    return markdown(lines)


def ahead_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the lead of `ours` over each other method at equal labels, paired by seed, mean over rounds."""
    lines = [("against", "seeds", "points ahead (95 % interval)", "p", "p after Holm")]
    ours, rivals, levels = ours_and_rivals(records, wish)
    for found in compare(ours, [*levels, *rivals]):
        lines.append((found.rival, str(found.num_seeds), _lead(found), p_text(found.p), p_text(found.p_corrected)))
    return markdown(lines)


def time_table(records: Sequence[Record], passes: Passes, wish: dict[str, str]) -> str:
    """Returns the cost per round of each method, without the first round, which is often random."""
    own = [record for record in wanted(records, wish) if record.round > 1]
    of_method = {
        method: (
            mean(passes[passes_key(r)].passes for r in own if r.method == method),
            mean(r.select_s for r in own if r.method == method),
            mean(r.train_s for r in own if r.method == method),
        )
        for method in methods_of(own)
    }
    ours = of_method[wish["ours"]]
    lines = [("method", "passes to choose", "× ours", "seconds to choose", "× ours", "seconds to train")]
    for method, (some, seconds, training) in of_method.items():
        shares = f"{some / ours[0]:.2g}", f"{seconds / ours[1]:.2g}"
        lines.append((method, number(some), shares[0], f"{seconds:.2f}", shares[1], f"{training:.2f}"))
    return markdown(lines)


def read_figures(name: str) -> list[dict[str, Any]]:
    return json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))


def speed_table(name: str) -> str:
    """Returns the results of a benchmark, each with its lower bound and, in brackets, by what factor we are better."""
    figures = read_figures(name)
    lines = [("what", "ours", "floor", "beside it, in the same run")]
    for figure in figures:
        beside = [
            f"{name} {number(value)}" + (f" (×{figure['ratio'][name]:g})" if name in (figure["ratio"] or {}) else "")
            for name, value in (figure["baseline"] or {}).items()
        ]
        floor = number(figure["floor"]) if figure["floor"] is not None else "–"
        lines.append((figure["name"], f"**{number(figure['value'])} {figure['unit']}**", floor, "; ".join(beside)))
    made = figures[0]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{markdown(lines)}\n\n`{made['command']}`, {made['device']}, {versions}."


def prior_table(path: Path, wish: dict[str, str]) -> str:
    """Returns the estimated over the true share of the rare classes (median, range) and the median L1 error.

    The last column counts the cuts with a share that is at most `TOLERANCE` times too large or too small, by size.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["imbalance"] == wish["imbalance"]]
    sizes = sorted({int(row["validation_size"]) for row in rows})
    cuts = {size: len({row["seed"] for row in rows if row["validation_size"] == str(size)}) for size in sizes}
    ratio_names = (f"M = {size:,} ({count} cuts)" for size, count in cuts.items())
    lines = [("variant", *ratio_names, *(f"L1, M = {size:,}" for size in sizes), f"cuts within {TOLERANCE}×")]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        ratios, errors, near = [], [], []
        for size in sizes:
            own = [row for row in rows if row["variant"] == variant and row["validation_size"] == str(size)]
            found = sorted(float(row["ratio"]) for row in own)
            ratios.append(f"{median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})")
            errors.append(f"{median(float(row['l1']) for row in own):.3f}")
            near.append(str(sum(1 / TOLERANCE <= ratio <= TOLERANCE for ratio in found)))
        lines.append((variant, *ratios, *errors, ", ".join(near)))
    return markdown(lines)


def cost_table(model: str) -> str:
    """Returns the time of a selection by pool size and number of GPUs, which share the descriptors and the matching."""
    described = next(f["value"] for f in read_figures("descriptors.json") if f" {model} " in f["name"])
    matched = 1.2e6 * 8192 / (read_figures("matching.json")[1]["value"] / 1000)  # pairs of 768 channels per second
    settled = read_figures("round.json")[0]["baseline"]["all of validation"]
    lines: list[tuple[str, ...]] = [("images", "1 GPU", "8 GPUs", "64 GPUs", "512 GPUs")]
    for size in (10**6, 10**7, 10**8, 10**9):
        seconds = size / described + size * NUM_CENTERS / matched
        lines.append((f"{size:,}", *(span(settled + seconds / gpus) for gpus in (1, 8, 64, 512))))
    share = NUM_CENTERS / matched / (1 / described + NUM_CENTERS / matched)
    rates = f"{described:,} images/s described, {matched / 1e9:.0f} billion pairs/s matched ({share:.1%} of the time)"
    return f"{markdown(lines)}\n\n{model}, {NUM_CENTERS:,} centers: {rates}."


def span(seconds: float) -> str:
    """Formats a number of seconds in the largest unit that gives at least 1."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


OF_RECORDS = {
    "table": accuracy_table,
    "total": total_table,
    "paper": distance_table,
    "saved": saved_table,
    "ahead": ahead_table,
    "best": best_table,
}
OF_BENCHMARKS = {"speed": speed_table, "cost": cost_table}


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _spread(drawn: Curve) -> list[str]:
    """Returns mean ± standard deviation in percent after each round."""
    return [f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(drawn.mean, drawn.std, strict=True)]


def wanted(records: Sequence[Record], wish: dict[str, str]) -> list[Record]:
    """Returns the rounds with the requested column values, with methods in the requested order."""
    own, _ = split_baselines(_asked(records, wish))
    order = wish["methods"].split("|") if "methods" in wish else methods_of(own)
    return complete([r for method in order for r in own if r.method == method])


def wanted_levels(records: Sequence[Record], wish: dict[str, str], own: Sequence[Record]) -> list[Curve]:
    """Returns the baselines with the requested column values as constant curves, over the labels of the rounds."""
    figure, found = wish.get("figure", "accuracy"), wanted_baselines(records, wish)
    return [constant(found, method, figure, spent_in(own)) for method in methods_of(found)]


def wanted_baselines(records: Sequence[Record], wish: dict[str, str]) -> list[Record]:
    """Returns the records of baselines with the requested column values, if they have the metric."""
    _, found = split_baselines(_asked(records, wish))
    measured = [record for record in found if getattr(record, wish.get("figure", "accuracy")) is not None]
    return sorted(measured, key=lambda record: bool(record.labels))  # the posterior last


def spent_in(rounds: Sequence[Record]) -> np.ndarray:
    return np.array(sorted({record.labels_spent for record in rounds}))


def _asked(records: Sequence[Record], wish: dict[str, str]) -> list[Record]:
    asked = {name: value for name, value in wish.items() if name in COLUMNS}
    return [r for r in records if all(str(getattr(r, name)) == value for name, value in asked.items())]


def _at(rounds: Sequence[int], cells: Sequence[str]) -> list[str]:
    return [cells[number - 1] if number <= len(cells) else "" for number in rounds]


def markdown(lines: Sequence[tuple[str, ...]]) -> str:
    head, *rest = lines
    rule = tuple("---" if place == 0 else "--:" for place in range(len(head)))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rest))


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    if len(sys.argv) > 1:
        name, *paths = sys.argv[1:]
        records, passes = collect(map(Path, paths))
        has_best = {record.best_accuracy is not None for record in records if record.round}
        if len(has_best) > 1:
            raise SystemExit("Some of the records have a best accuracy, some have none: make two tables.")
        write_whole(
            FOLDER / f"{name}.csv", to_csv(records, [*COLUMNS, *(["best_accuracy"] if True in has_best else [])])
        )
        if passes:
            write_passes(passes, FOLDER / f"{name}.csv")
    for page in pages():
        page.write_text(make_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
