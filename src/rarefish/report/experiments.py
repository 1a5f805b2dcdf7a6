"""The report of one or more runs: learning curves, labels saved, tests, what was bought, what it cost."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from matplotlib.figure import Figure

from rarefish.errors import ArgumentError, DataError, nearest
from rarefish.records import Record, read_records, to_csv, write_whole
from rarefish.report.charts import draw_confusions, draw_lines, draw_tsne, to_svg
from rarefish.report.curves import Curve, complete, curve, methods_of, name_apart
from rarefish.report.statistics import Comparison, Saving, compare, saving

FORMATS = ("html", "png", "pdf", "csv")
PAPER_NAMES = {
    "random": "random",
    "varr_E1_K128": "varR K128",
    "varr_E4_K32": "varR E4 K32",
    "vaal": "VAAL",
    "features L20": "features L20",
    "fisher_yhat L20": "fisher prediction L20",
    "fisher_density L20": "fisher density L20",
    "fisher_density L80": "fisher density L80",
    "fisher_trace L20": "fisher trace L20",
    "fisher_mi L20": "fisher MI L20",
}
"""The paper's curves, as our recipes call the same settings."""


@dataclass(frozen=True)
class Contents:
    """All that a report shows."""

    title: str
    records: list[Record]
    ours: str
    paper: list[Curve]
    snapshots: dict[str, Path]
    """Method -> features of test images, for t-SNE."""
    rare: frozenset[int]
    """The classes that the pool hardly has."""

    def curves(self, figure: str) -> list[Curve]:
        return [curve(self.records, method, figure) for method in methods_of(self.records)]


def read_runs(runs: Sequence[Path], ours: str | None = None, paper: Path | None = None) -> Contents:
    """The finished rounds of all runs together; `ours` is the method that the others are compared with."""
    records: list[Record] = []
    snapshots: dict[str, Path] = {}
    rare: frozenset[int] = frozenset()
    for run in runs:
        settings = _settings(run)
        rare |= frozenset(settings["rare"])
        order = [method["name"] for method in settings["methods"]]
        found = sorted((run / "records").glob("*.jsonl"), key=lambda path: _place(path, order))
        if not found:
            raise DataError(f"{run} holds no records. Give the folder of a run, as `rarefish experiment` made it.")
        for path in found:
            rows = read_records(path)
            if not rows:
                continue
            records += rows
            for snapshot in (run / "snapshots").glob(f"{path.stem}-r*.npz"):
                snapshots[rows[0].method] = snapshot
    records = complete(name_apart(records))
    methods = methods_of(records)
    chosen = ours or next((m for m in reversed(methods) if m.startswith("fisher") and "true" not in m), methods[0])
    if chosen not in methods:
        raise ArgumentError(f"There is no method {chosen!r} in these runs. {nearest(chosen, methods)}")
    title = " and ".join(str(_settings(run).get("name", run.name)) for run in runs)
    drawn = read_paper(paper, records) if paper else []
    kept = snapshots if len({record.imbalance for record in records}) == 1 else {}
    return Contents(title, records, chosen, drawn, kept, rare)


def _settings(run: Path) -> dict[str, Any]:
    try:
        return json.loads((run / "settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{run} holds no run: its settings.json cannot be read. Give the folder of a run.") from error


def _place(path: Path, order: list[str]) -> tuple[int, str]:
    """Methods in the order of the recipe."""
    rows = read_records(path)
    return order.index(rows[0].method) if rows and rows[0].method in order else len(order), path.name


def read_paper(path: Path, records: Sequence[Record]) -> list[Curve]:
    """The paper's MNIST curves of the records' imbalance, for the methods that are among them."""
    budget = min(record.labels_spent for record in records)
    known, imbalances = set(methods_of(records)), {str(record.imbalance) for record in records}
    found: dict[str, dict[int, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = PAPER_NAMES.get(f"{row['method']} {row['param']}".strip())
            if row["dataset"] == "MNIST" and row["imbalance"] in imbalances and name in known:
                found.setdefault(str(name), {})[int(row["round"])] = float(row["accuracy"]) / 100
    return [
        Curve(name, np.array(sorted(values)) * budget, np.array([[values[r] for r in sorted(values)]]))
        for name, values in found.items()
    ]


def figures(contents: Contents) -> dict[str, Figure]:
    """Every chart of the report by name."""
    ours, methods = curve(contents.records, contents.ours, "accuracy"), methods_of(contents.records)
    drawn = {
        "accuracy": draw_lines(contents.curves("accuracy"), "Accuracy on the test set", methods, paper=contents.paper),
        "rare_recall": draw_lines(contents.curves("rare_recall"), "Recall on the rare classes", methods),
        "rare_bought": draw_lines(_rare_share(contents), "Share of rare images among those bought", methods),
    }
    told = [m for m in methods if _has(contents.records, m, "rare_precision")]
    if told:
        precision = [curve(contents.records, method, "rare_precision") for method in told]
        labels = [curve(contents.records, method, "pseudo_accuracy") for method in told]
        title = "Rare-class precision: of the images chosen for a rare failure, those that are rare"
        drawn["rare_precision"] = draw_lines(precision, title, methods, top=1.0)
        drawn["pseudo_accuracy"] = draw_lines(labels, "Pseudo-labels of the chosen that are right", methods, top=1.0)
    number = min(3, int(ours.labels_spent.shape[0]))
    matrices = _confusions(contents.records, number)
    if matrices:
        names = [str(c) for c in range(len(next(iter(matrices.values()))))]
        drawn[f"confusion_round_{number}"] = draw_confusions(matrices, names)
    if contents.snapshots:
        drawn["tsne"] = draw_tsne({method: _places(path) for method, path in contents.snapshots.items()})
    return drawn


def savings(contents: Contents, figure: str = "accuracy") -> list[Saving]:
    """Labels that our method saves against each other one."""
    ours = curve(contents.records, contents.ours, figure)
    found = [saving(ours, rival) for rival in contents.curves(figure) if rival.method != contents.ours]
    return [one for one in found if one]


def comparisons(contents: Contents, num_rounds: int | None = None) -> list[Comparison]:
    """Our accuracy against each other method's, seed by seed."""
    ours = curve(contents.records, contents.ours, "accuracy")
    return compare(ours, [rival for rival in contents.curves("accuracy") if rival.method != contents.ours], num_rounds)


def write_report(contents: Contents, output: Path, formats: Sequence[str]) -> list[Path]:
    """Writes the asked-for files into the folder: report.html, NAME.png, NAME.pdf, records.csv."""
    for wanted in formats:
        if wanted not in FORMATS:
            raise ArgumentError(f"There is no format {wanted!r}. {nearest(wanted, FORMATS)}")
    output.mkdir(parents=True, exist_ok=True)
    drawn, written = figures(contents), []
    for kind in set(formats) & {"png", "pdf"}:
        for name, figure in drawn.items():
            written.append(output / f"{name}.{kind}")
            figure.savefig(written[-1], dpi=160)
    if "csv" in formats:
        written.append(output / "records.csv")
        write_whole(written[-1], to_csv(contents.records))
    if "html" in formats:
        written.append(output / "report.html")
        write_whole(written[-1], page(contents, drawn))
    return sorted(written)


def page(contents: Contents, drawn: dict[str, Figure]) -> str:
    """The report as one file that needs no network."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (files("rarefish.report") / "experiments.html").read_text(encoding="utf-8")
    )
    accuracy, rare = contents.curves("accuracy"), contents.curves("rare_recall")
    return template.render(
        title=contents.title,
        ours=contents.ours,
        charts={name: to_svg(figure) for name, figure in drawn.items()},
        labels_spent=max((c.labels_spent.tolist() for c in accuracy), key=len),
        accuracy=[(c.method, len(c.values), _cells(c)) for c in accuracy],
        rare=[(c.method, len(c.values), _cells(c)) for c in rare],
        best=[(c.method, len(c.values), _cells(c)) for c in _best(contents)],
        savings=savings(contents),
        comparisons=comparisons(contents),
        early=comparisons(contents, 5),
        costs=[_cost(contents.records, method) for method in methods_of(contents.records)],
    )


def _cells(drawn: Curve) -> list[str]:
    return [f"{100 * mean:.1f} ± {100 * std:.1f}" for mean, std in zip(drawn.mean, drawn.std, strict=True)]


def _best(contents: Contents) -> list[Curve]:
    methods = [m for m in methods_of(contents.records) if _has(contents.records, m, "best_accuracy")]
    return [curve(contents.records, method, "best_accuracy") for method in methods]


def _has(records: Sequence[Record], method: str, figure: str) -> bool:
    own = [getattr(record, figure) for record in records if record.method == method]
    return bool(own) and all(value is not None for value in own)


def _rare_share(contents: Contents) -> list[Curve]:
    curves = []
    for drawn in contents.curves("accuracy"):
        own = [r for r in contents.records if r.method == drawn.method]
        seeds = sorted({r.seed for r in own})
        by_seed = [sorted((r for r in own if r.seed == seed), key=lambda r: r.round) for seed in seeds]
        shares = [[sum(c in contents.rare for c in r.bought) / max(len(r.bought), 1) for r in rows] for rows in by_seed]
        curves.append(Curve(drawn.method, drawn.labels_spent, np.array(shares)))
    return curves


def _confusions(records: Sequence[Record], number: int) -> dict[str, np.ndarray]:
    found = {}
    for method in methods_of(records):
        own = [np.array(r.confusion) for r in records if r.method == method and r.round == number and r.confusion]
        if own:
            found[method] = np.sum(own, axis=0)
    return found


def _places(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.manifold import TSNE

    with np.load(path) as snapshot:
        features, truth, answers = (snapshot[name] for name in ("features", "truth", "answers"))
    return TSNE(init="pca", random_state=0, perplexity=30).fit_transform(features), truth, answers


def _cost(records: Sequence[Record], method: str) -> tuple[str, str, str, str]:
    own = [record for record in records if record.method == method]
    chose = [record for record in own if record.passes] or own  # a random first round takes no pass
    passes = np.mean([record.passes for record in chose])
    select_s, train_s = np.mean([r.select_s for r in chose]), np.mean([r.train_s for r in own])
    return method, f"{passes:,.0f}", f"{select_s:.2f}", f"{train_s:.2f}"
