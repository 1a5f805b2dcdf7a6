"""Read the data of a report: the records of one or more runs, and the paper's curves."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rarefish.active_learning.records import Record, count_rare, read_records, read_settings
from rarefish.errors import ArgumentError, DataError, nearest
from rarefish.report.curves import (
    Curve,
    by_settings,
    complete,
    constant,
    curve,
    methods_of,
    name_apart,
    split_baselines,
)

PAPER_SETS = {"mnist": "MNIST", "svhn-extra": "SVHN", "imagenet": "ImageNet"}
"""Our datasets with the same splits as in the paper, and the paper's names for them."""
PAPER_NAMES = {
    "random": "random",
    "varr_E1_K128": "varR K128",
    "varr_E1_K64": "varR K64",
    "varr_E1_K32": "varR K32",
    "varr_E4_K32": "varR E4 K32",
    "varr_E4_K16": "varR E4 K16",
    "varr_E4_K8": "varR E4 K8",
    "vaal": "VAAL",
    "features L20": "features L20",
    "features L256": "features L256",
    "features L512": "features L512",
    "fisher_yhat L20": "fisher prediction L20",
    "fisher_yhat L256": "fisher prediction L256",
    "fisher_yhat L768": "fisher prediction L768",
    "fisher_density L20": "fisher density L20",
    "fisher_density L80": "fisher density L80",
    "fisher_density L768": "fisher density L768",
    "fisher_trace L20": "fisher trace L20",
    "fisher_mi L20": "fisher MI L20",
}
"""The names of the paper's curves, and those of the same settings in our recipes."""


ALIKE = ("dataset", "circumstances", "model", "budget", "training", "pretraining")
"""Settings that must be equal for runs to be compared in one report, since their cells have the same names."""


@dataclass(frozen=True)
class Contents:
    """All data of a report."""

    title: str
    records: list[Record]
    ours: str
    paper: list[Curve]
    snapshots: dict[str, Path]
    """Features of test images per method, for t-SNE."""
    rare: frozenset[int]
    """The rare classes of the pool."""
    baselines: list[Record] = field(default_factory=list)
    """Records of baselines, which need no pool labels."""

    def curves(self, figure: str) -> list[Curve]:
        return [curve(self.records, method, figure) for method in methods_of(self.records)]

    def levels(self, figure: str) -> list[Curve]:
        """Returns one constant curve per baseline, with the same label counts as the curve of our method."""
        spent = curve(self.records, self.ours, figure).labels_spent
        return [constant(self.baselines, method, figure, spent) for method in methods_of(self.baselines)]


def read_runs(runs: Sequence[Path], ours: str | None = None, paper: Path | None = None) -> Contents:
    """Returns the finished rounds of all runs; `ours` is the method that is compared with the others."""
    settings_of = {run: read_settings(run) for run in runs}
    check_alike(settings_of)
    records: list[Record] = []
    snapshots: dict[str, Path] = {}
    rare: frozenset[int] = frozenset()
    cells: set[str] = set()
    for run, settings in settings_of.items():
        rare |= frozenset(settings["rare"])
        order = [method["name"] for method in (*settings["methods"], *settings.get("baselines", ()))]
        found = sorted((run / "records").glob("*.jsonl"), key=lambda path: _place(path, order))
        if not found:
            raise DataError(f"{run} contains no records. Give the folder of a run made by `rarefish experiment`.")
        for path in found:
            rows = read_records(path)
            if not rows or path.name in cells:  # a cell that occurs in several runs counts once
                continue
            cells.add(path.name)
            records += count_rare(rows, settings["rare"])
            for snapshot in (run / "snapshots").glob(f"{path.stem}-r*.npz"):
                snapshots[rows[0].method] = snapshot
    if len({(record.cell, record.round) for record in records}) < len(records):
        raise ArgumentError(
            "Two methods of these runs have the same name but different settings. Write a separate report for each run."
        )
    records, baselines = split_baselines(by_settings(records))
    if not records:
        raise DataError(
            "These runs have only baselines and no finished rounds yet. Run the experiment again to continue."
        )
    named = name_apart([*records, *baselines])
    named, baselines = split_baselines(named)
    drawn = read_paper(paper, settings_of[runs[0]]["dataset"], list(zip(records, named, strict=True))) if paper else []
    records = complete(named)
    methods = methods_of(records)
    chosen = ours or next((m for m in reversed(methods) if m.startswith("fisher") and "true" not in m), methods[0])
    if chosen not in methods:
        raise ArgumentError(f"There is no method {chosen!r} in these runs. {nearest(chosen, methods)}")
    title = " and ".join(str(settings.get("name", run.name)) for run, settings in settings_of.items())
    kept = snapshots if len({record.imbalance for record in records}) == 1 else {}
    return Contents(title, records, chosen, drawn, kept, rare, baselines)


def check_alike(settings_of: Mapping[Path, dict[str, Any]]) -> None:
    """Raises an ArgumentError for runs that cannot be compared in one report."""
    (first, known), *others = settings_of.items()
    for run, settings in others:
        differing = [name for name in ALIKE if settings.get(name) != known.get(name)]
        if differing:
            raise ArgumentError(
                f"{first} and {run} differ in {', '.join(differing)}. Write a separate report for each."
            )


def _place(path: Path, order: list[str]) -> tuple[int, str]:
    """Returns a sort key that puts methods in the order of the recipe."""
    rows = read_records(path)
    return order.index(rows[0].method) if rows and rows[0].method in order else len(order), path.name


def read_paper(path: Path, dataset: str, records: Sequence[tuple[Record, Record]]) -> list[Curve]:
    """Returns the paper's curves for the settings that occur in the records, under the names of the recipe."""
    if dataset not in PAPER_SETS:
        raise ArgumentError(
            f"The paper has no curves for {dataset!r}, only for {', '.join(PAPER_SETS)} with its own splits. "
            "Leave out --paper."
        )
    budget = min(record.labels_spent for record, _ in records)
    shown = {(r.method, str(r.imbalance), r.start): named.method for r, named in reversed(records)}
    found: dict[str, dict[int, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            layers, is_random, _ = row["param"].partition("_rnd")
            name = PAPER_NAMES.get(f"{row['method']} {layers}".strip(), "")
            ours = shown.get((name, row["imbalance"], "random" if is_random else "pretrained"))
            if row["dataset"] == PAPER_SETS[dataset] and ours:
                found.setdefault(ours, {})[int(row["round"])] = float(row["accuracy"]) / 100
    return [
        Curve(name, np.array(sorted(values)) * budget, np.array([[values[r] for r in sorted(values)]]))
        for name, values in found.items()
    ]
