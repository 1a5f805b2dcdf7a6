"""The report on runs: learning curves, paired comparisons, labels saved, labels per class, time and passes."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rarefish.active_learning.records import COLUMNS, Record, to_csv
from rarefish.active_learning.stopping import STEP
from rarefish.errors import ArgumentError, nearest
from rarefish.io import replace_whole, write_whole
from rarefish.report.charts import draw_heatmaps, draw_lines, draw_tsne, save_figure, to_svg
from rarefish.report.curves import Curve, curve, labels_to_reach, methods_of
from rarefish.report.forecast import Forecast, forecast
from rarefish.report.run_data import Contents
from rarefish.report.statistics import FEWEST_SEEDS, Comparison, Saving, compare, compare_labels, needed_text, p_text
from rarefish.report.templates import load_template

FORMATS = ("html", "png", "pdf", "csv", "parquet")
MOST_CLASSES = 20
"""With more classes, the charts per class would be unreadable."""


def figures(contents: Contents) -> dict[str, Figure]:
    """Returns the charts of the report by name."""
    methods, accuracy = methods_of(contents.records), contents.curves("accuracy")
    draw = partial(draw_lines, methods=methods, ours=contents.ours)
    drawn = {
        "accuracy": draw(
            accuracy, "Accuracy on the test set", paper=contents.paper, baselines=contents.levels("accuracy")
        ),
        "rare_recall": draw(
            contents.curves("rare_recall"), "Recall on the rare classes", baselines=contents.levels("rare_recall")
        ),
        "rare_share": draw(_rare_share(contents), "Fraction of rare images among those chosen"),
    }
    told = [m for m in methods if _has(contents.records, m, "rare_precision")]
    if told:
        precision = [curve(contents.records, method, "rare_precision") for method in told]
        labels = [curve(contents.records, method, "pseudo_accuracy") for method in told]
        title = "Rare-class precision: fraction of the images chosen for a rare failure that are rare"
        drawn["rare_precision"] = draw(precision, title, top=1.0)
        drawn["pseudo_accuracy"] = draw(labels, "Fraction of the chosen images with a correct pseudo-label", top=1.0)
    classes = [str(c) for c in range(len(contents.records[0].recall))]
    if len(classes) <= MOST_CLASSES:
        number = min(3, *(len(each.labels_spent) for each in accuracy))  # a run may be unfinished
        drawn |= class_figures(contents.records, methods, classes, number)
    own = forecast(contents.records, contents.ours)
    if own and own.curves:
        title = f"{contents.ours}: gain from the next {STEP} labels on the failing classes"
        drawn["outlook"] = draw_lines(own.curves, title, [c.method for c in own.curves])
    if contents.snapshots:
        drawn["tsne"] = draw_tsne({method: _places(path) for method, path in contents.snapshots.items()})
    return drawn


def class_figures(
    records: Sequence[Record], methods: Sequence[str], classes: Sequence[str], number: int
) -> dict[str, Figure]:
    """Returns the per-class charts: labels, recall and confusion after round `number`."""
    picks = {method: _picks(records, method, len(classes)) for method in methods}
    rounds = [str(r) for r in range(1, 1 + max(counts.shape[1] for counts in picks.values()))]
    after = [[r for r in records if r.method == method and r.round == number] for method in methods]
    recall = 100 * np.array([np.mean([r.recall for r in own], axis=0) for own in after])
    budget = max(float(counts.sum(axis=0).max()) for counts in picks.values())
    drawn = {
        "picks": draw_heatmaps(picks, classes, rounds, names=("round", "class"), top=budget / 2, shown_from=0.5),
        f"recall_round_{number}": draw_heatmaps(
            {f"after round {number}": recall}, methods, classes, names=("class", ""), top=100.0, shown_from=0.0
        ),
    }
    confusions = {m: _confusion(own) for m, own in zip(methods, after, strict=True) if all(r.confusion for r in own)}
    if confusions:
        drawn[f"confusion_round_{number}"] = draw_heatmaps(
            confusions, classes, classes, names=("prediction", "true class"), top=100.0, shown_from=5.0
        )
    return drawn


def savings(contents: Contents, figure: str = "accuracy") -> list[Saving]:
    """Returns the labels that our method saves compared with each other method."""
    ours = curve(contents.records, contents.ours, figure)
    return compare_labels(ours, [rival for rival in contents.curves(figure) if rival.method != contents.ours])


def comparisons(contents: Contents, num_rounds: int | None = None) -> list[Comparison]:
    """Returns paired comparisons of our accuracy with that of each other method and each baseline."""
    ours = curve(contents.records, contents.ours, "accuracy")
    rivals = [rival for rival in contents.curves("accuracy") if rival.method != contents.ours]
    return compare(ours, [*rivals, *contents.levels("accuracy")], num_rounds)


def reached(contents: Contents) -> list[tuple[str, str, str, str]]:
    """Returns, for each baseline, its name, seeds, accuracy, and the labels that our mean curve needs to reach it."""
    ours = curve(contents.records, contents.ours, "accuracy")
    return [
        (one.method, str(len(one.values)), _cells(one)[0], needed_text(labels_to_reach(float(one.mean[0]), ours)))
        for one in contents.levels("accuracy")
    ]


def forecasts(contents: Contents) -> list[Forecast]:
    """Returns the expected gain from the next labels for each method."""
    found = [forecast(contents.records, method) for method in methods_of(contents.records)]
    return [one for one in found if one]


def write_report(contents: Contents, output: Path, formats: Sequence[str]) -> list[Path]:
    """Writes the requested formats into the folder: report.html, NAME.png, NAME.pdf, records.csv, records.parquet."""
    for wanted in formats:
        if wanted not in FORMATS:
            raise ArgumentError(f"There is no format {wanted!r}. {nearest(wanted, FORMATS)}")
    if "parquet" in formats and not find_spec("pyarrow"):
        raise ArgumentError("Parquet needs an additional package: pip install 'rarefish[parquet]'.")
    output.mkdir(parents=True, exist_ok=True)
    drawn, written = figures(contents), []
    for kind in set(formats) & {"png", "pdf"}:
        for name, figure in drawn.items():
            written.append(output / f"{name}.{kind}")
            save_figure(figure, written[-1])
    if "csv" in formats:
        written.append(output / "records.csv")
        write_whole(written[-1], to_csv([*contents.baselines, *contents.records]))
    if "parquet" in formats:
        written.append(output / "records.parquet")
        write_parquet([*contents.baselines, *contents.records], written[-1])
    if "html" in formats:
        written.append(output / "report.html")
        write_whole(written[-1], page(contents, drawn))
    return sorted(written)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """Writes the table of `to_csv` as a Parquet file, with unrounded numbers."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({column: [getattr(record, column) for record in records] for column in COLUMNS})
    replace_whole(path, lambda file: parquet.write_table(table, file))


def page(contents: Contents, drawn: dict[str, Figure]) -> str:
    """Returns the report as one HTML page that works without a network connection."""
    accuracy, rare = contents.curves("accuracy"), contents.curves("rare_recall")
    return load_template("experiments.html").render(
        title=contents.title,
        ours=contents.ours,
        charts={name: to_svg(figure) for name, figure in drawn.items()},
        labels_spent=max((c.labels_spent.tolist() for c in accuracy), key=len),
        accuracy=[(c.method, len(c.values), _cells(c)) for c in accuracy],
        rare=[(c.method, len(c.values), _cells(c)) for c in rare],
        levels={
            figure: [(c.method, len(c.values), _cells(c)[0]) for c in contents.levels(figure)]
            for figure in ("accuracy", "rare_recall")
        },
        reached=reached(contents),
        best=[(c.method, len(c.values), _cells(c)) for c in _best(contents)],
        comparisons=comparisons(contents),
        early=comparisons(contents, 5),
        p_text=p_text,
        fewest_seeds=FEWEST_SEEDS,
        savings=savings(contents),
        forecasts=forecasts(contents),
        costs=[_cost(contents.records, method) for method in methods_of(contents.records)],
    )


def _cells(drawn: Curve) -> list[str]:
    """Returns the mean and spread of each round in percent; a single seed has no spread."""
    spread = [f" ± {100 * std:.1f}" if len(drawn.values) > 1 else "" for std in drawn.std]
    return [f"{100 * mean:.1f}{more}" for mean, more in zip(drawn.mean, spread, strict=True)]


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
        shares = [[_share_of(r, contents.rare) for r in rows] for rows in by_seed]
        curves.append(Curve(drawn.method, drawn.labels_spent, np.array(shares)))
    return curves


def _share_of(record: Record, rare: frozenset[int]) -> float:
    """Returns the fraction of rare images among all chosen images, including those without a label."""
    return sum(c in rare for c in record.new_labels) / max(len(record.indices), len(record.new_labels), 1)


def _picks(records: Sequence[Record], method: str, num_classes: int) -> np.ndarray:
    """Returns the number of images labeled per class (rows) and round (columns), averaged over seeds."""
    own = [record for record in records if record.method == method]
    counts = np.zeros((num_classes, max(record.round for record in own)))
    for record in own:
        counts[:, record.round - 1] += np.bincount(record.new_labels, minlength=num_classes)
    return counts / len({record.seed for record in own})


def _confusion(records: Sequence[Record]) -> np.ndarray:
    """Returns the predictions as percentages of each true class, pooled over seeds."""
    counts = np.sum([record.confusion for record in records], axis=0)
    return 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _places(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.manifold import TSNE

    with np.load(path) as snapshot:
        features, truth, answers = (snapshot[name] for name in ("features", "truth", "answers"))
    return TSNE(init="pca", random_state=0, perplexity=30).fit_transform(features), truth, answers


def _cost(records: Sequence[Record], method: str) -> tuple[str, str, str, str]:
    own = [record for record in records if record.method == method]
    chose = [record for record in own if record.passes] or own  # a random first round needs no pass over the pool
    passes = np.mean([record.passes for record in chose])
    select_s, train_s = np.mean([r.select_s for r in chose]), np.mean([r.train_s for r in own])
    return method, f"{passes:,.0f}", f"{select_s:.2f}", f"{train_s:.2f}"
