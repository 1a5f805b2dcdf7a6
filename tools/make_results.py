"""Results pages: a table of records beside each page, and the tables of the page made from it.

    python tools/make_results.py mnist runs/imbalanced runs/balanced …   writes docs/results/mnist.csv and its tables
    python tools/make_results.py mnist runs/more docs/results/mnist.csv  adds a run to what was there
    python tools/make_results.py                                         makes the tables of all pages anew

In a page, `<!-- table: FILE.csv; COLUMN=VALUE; … -->` up to `<!-- end -->` is a table of accuracies by round; `saved`
in place of `table`, with `ours=METHOD`, one of the labels that METHOD saves; `ahead` one of how far it is ahead, mean
over rounds; `best` one of how far it is ahead of the best other of each round. `A.csv+B.csv` are both; of a cell in
both, the first's. `figure=best_accuracy` asks for another column than the accuracy, `paper=mnist` puts the paper's
figures under ours, `methods=A|B` keeps these alone, `all_rounds` shows every round.
`time: FILE.csv; ours=METHOD` is one of what a round costs, in passes of an image through a network and in seconds;
passes are in FILE_passes.csv. `chart` is for `make_charts.py`.
`speed: FILE.json` is a table of what a benchmark wrote, with what it was measured beside and how much faster ours is.
`cost: MODEL` is a table of what a selection takes by the cost model, from the rates that benchmarks measured.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from record_tables import Passes, collect, passes_key, write_passes

from rarefish.active_learning.records import COLUMNS, Record, to_csv
from rarefish.io import write_whole
from rarefish.report.curves import complete, curve, methods_of, of_seeds
from rarefish.report.run_data import read_paper
from rarefish.report.statistics import compare, saving

FOLDER = Path(__file__).parent.parent / "docs" / "results"
BENCHMARKS = FOLDER.parents[1] / "benchmarks" / "results"
PAPER = FOLDER / "paper_curves.csv"
ROUNDS = (1, 2, 3, 4, 5, 7, 10)
NUM_CENTERS = 15_000
"""Approximate failures of a ResNet-18 on the 50,000 validation images of ImageNet, for the cost model."""


def pages() -> list[Path]:
    """Returns all pages that may contain generated tables."""
    return [FOLDER.parents[1] / "README.md", *sorted(FOLDER.glob("*.md"))]


def make_tables(text: str, folder: Path = FOLDER) -> str:
    """Returns the page with all its tables updated."""

    def fill(match: re.Match[str]) -> str:
        kind, file, wish = read_wish(match[1])
        if kind in OF_BENCHMARKS:
            return f"<!-- {match[1]} -->\n\n{OF_BENCHMARKS[kind](file)}\n\n<!-- end -->"
        records, passes = collect(folder / name for name in file.split("+"))
        table = time_table(records, passes, wish) if kind == "time" else OF_RECORDS[kind](records, wish)
        return f"<!-- {match[1]} -->\n\n{table}\n\n<!-- end -->"

    return re.sub(
        r"<!-- ((?:table|saved|ahead|best|time|speed|cost): .*?) -->.*?<!-- end -->", fill, text, flags=re.DOTALL
    )


def read_wish(asked: str) -> tuple[str, str, dict[str, str]]:
    """Parses the marker of a table: its kind, its file and the other options by name."""
    kind, file, *wishes = [part.strip() for part in re.split(r"[:;]", asked)]
    return kind, file, {part.partition("=")[0]: part.partition("=")[2] for part in wishes}


def accuracy_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns mean ± standard deviation in percent after each round, one row per method."""
    own = wanted(records, wish)
    paper = read_paper(PAPER, wish["paper"], list(zip(own, own, strict=True))) if "paper" in wish else []
    papers = {drawn.method: drawn for drawn in paper}
    last = max(record.round for record in own)
    rounds = sorted({last, *(number for number in range(1, last) if number in ROUNDS or "all_rounds" in wish)})
    lines = [("method", "n", *map(str, rounds))]
    for method in methods_of(own):
        drawn = curve(own, method, wish.get("figure", "accuracy"))
        cells = [f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(drawn.mean, drawn.std, strict=True)]
        lines.append((method, str(len(drawn.values)), *_at(rounds, cells)))
        if method in papers:
            lines.append(("· the paper", "", *_at(rounds, [f"{100 * value:.1f}" for value in papers[method].mean])))
    return _markdown(lines)


def saved_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the labels that `ours` saves against each other method, with the interval."""
    own = wanted(records, wish)
    ours = curve(own, wish["ours"], "accuracy")
    lines = [("against", "labels saved", "95 % interval", "accuracies compared", "to end where it ends")]
    for method in methods_of(own):
        found = saving(ours, curve(own, method, "accuracy")) if method != wish["ours"] else None
        if found:
            levels = f"{100 * found.low_level:.1f} to {100 * found.high_level:.1f} %"
            lines.append((method, f"{100 * found.mean:.0f} %", found.interval, levels, found.end))
    return _markdown(lines)


def best_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the lead of `ours` over the best other method per round, with the standard error over paired seeds."""
    own = wanted(records, wish)
    curves = {method: curve(own, method, "accuracy") for method in methods_of(own)}
    ours = curves.pop(wish["ours"])
    lines = [("round", "ours", "best other", "its accuracy", "ours ahead by", "standard error")]
    for row, accuracy in enumerate(ours.mean):
        rival = max(curves.values(), key=lambda one: one.mean[row])
        shared = [seed for seed in ours.seeds if seed in rival.seeds]
        ahead = of_seeds(ours, shared).values[:, row] - of_seeds(rival, shared).values[:, row]
        figures = accuracy, rival.mean[row], ahead.mean(), ahead.std(ddof=1) / len(ahead) ** 0.5
        mine, its, by, error = (f"{100 * figure:.1f}" for figure in figures)
        lines.append((str(row + 1), mine, rival.method, its, by, error))
    return _markdown(lines)


def ahead_table(records: Sequence[Record], wish: dict[str, str]) -> str:
    """Returns the lead of `ours` over each other method at equal labels, paired by seed, mean over rounds."""
    own = wanted(records, wish)
    others = [curve(own, method, "accuracy") for method in methods_of(own) if method != wish["ours"]]
    lines = [("against", "points ahead", "p", "p after Holm")]
    for found in compare(curve(own, wish["ours"], "accuracy"), others):
        points = f"{100 * found.difference:+.1f}"
        lines.append((found.rival, points, f"{found.p:.3f}", f"{found.p_corrected:.3f}"))
    return _markdown(lines)


def time_table(records: Sequence[Record], passes: Passes, wish: dict[str, str]) -> str:
    """Returns the cost per round of each method, without the first round, which is often random."""
    own = [record for record in wanted(records, wish) if record.round > 1]
    of_method = {
        method: (
            mean(passes[passes_key(r)] for r in own if r.method == method),
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
    return _markdown(lines)


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
    return f"{_markdown(lines)}\n\n`{made['command']}`, {made['device']}, {versions}."


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
    return f"{_markdown(lines)}\n\n{model}, {NUM_CENTERS:,} centers: {rates}."


def span(seconds: float) -> str:
    """Formats a number of seconds in the largest unit that gives at least 1."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


OF_RECORDS = {"table": accuracy_table, "saved": saved_table, "ahead": ahead_table, "best": best_table}
OF_BENCHMARKS = {"speed": speed_table, "cost": cost_table}


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def wanted(records: Sequence[Record], wish: dict[str, str]) -> list[Record]:
    """Returns the records with the requested column values, with methods in the requested order."""
    asked = {name: value for name, value in wish.items() if name in COLUMNS}
    own = [r for r in records if all(str(getattr(r, name)) == value for name, value in asked.items())]
    order = wish["methods"].split("|") if "methods" in wish else methods_of(own)
    return complete([r for method in order for r in own if r.method == method])


def _at(rounds: Sequence[int], cells: Sequence[str]) -> list[str]:
    return [cells[number - 1] if number <= len(cells) else "" for number in rounds]


def _markdown(lines: Sequence[tuple[str, ...]]) -> str:
    head, *rest = lines
    rule = tuple("---" if place == 0 else "--:" for place in range(len(head)))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rest))


def main() -> None:
    if len(sys.argv) > 1:
        name, *paths = sys.argv[1:]
        records, passes = collect(map(Path, paths))
        has_best = {record.best_accuracy is not None for record in records}
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
