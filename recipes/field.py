"""The field test: methods on frozen features of photographs, clothing and house numbers, with a linear head.

Run: python recipes/field.py --settings 'caltech_100-*' --seeds 10 --jobs 2
Then: python tools/make_field.py runs/field
"""

import csv
import time
from collections import Counter
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import click

from rarefish.errors import RarefishError, nearest
from rarefish.experiments.feature_cache import load_features
from rarefish.experiments.frozen_features import LIMIT, OURS, TRUSTED, Setting, run_field
from rarefish.experiments.settings import Method

IMBALANCES = {"caltech_100": (1, 5), "tiny_imagenet_100": (1, 10, 100), "fashion": (1, 100), "svhn": (1, 100)}
"""Imbalances of each dataset; 1 leaves the pool as it is, which is balanced for all but caltech_100."""
TRUSTED_PER_CLASS = (3, 5, 10)
TEN_CLASSES = ("fashion", "svhn")
"""Datasets with ten classes, of which the last five are rare; they get 50 labels per round instead of 100."""

METHODS = (
    *(Method(name=name, acquisition=name) for name in ("random", "entropy", "margin", "badge", "core_set")),
    *(Method(name=name, acquisition=name) for name in ("typiclust", "max_herding", "uherding", "probcover")),
    *(Method(name=name, acquisition=name) for name in ("dropquery", "bait", "nearest_failures", "corrected_entropy")),
    *(Method(name=name, acquisition=name) for name in ("posterior_likeliest", "posterior_quotas")),
    Method(name="fisher_density", acquisition="fisher", settings={"labels": "density"}),
    Method(name="fisher_posterior", acquisition="fisher", settings={"labels": "posterior"}),
    Method(name=OURS, acquisition=OURS),
    Method(name=LIMIT, acquisition=LIMIT),
)
"""`fisher_density` is the method of the paper, and `fisher_posterior` the default of earlier versions."""


def all_settings() -> list[Setting]:
    """Returns the settings of the field test: two with the same split are next to each other."""
    return [
        Setting(
            dataset=dataset,
            imbalance=imbalance,
            per_class=per_class,
            trusted=trusted,
            budget=50 if dataset in TEN_CLASSES else 100,
            rare=(5, 6, 7, 8, 9) if dataset in TEN_CLASSES else None,
        )
        for dataset, imbalances in IMBALANCES.items()
        for imbalance in imbalances
        for per_class in TRUSTED_PER_CLASS
        for trusted in TRUSTED
    ]


def settings_like(patterns: str) -> list[Setting]:
    """Returns the settings whose names match one of the patterns, which are separated by commas."""
    known = all_settings()
    for pattern in patterns.split(","):
        if not any(fnmatch(setting.name, pattern) for setting in known):
            raise click.UsageError(f"No setting is like {pattern}. {nearest(pattern, [one.name for one in known])}")
    return [setting for setting in known if any(fnmatch(setting.name, pattern) for pattern in patterns.split(","))]


def methods_named(names: str | None) -> list[Method]:
    """Returns the methods with these names, which are separated by commas, or all methods."""
    known = {method.name: method for method in METHODS}
    for name in names.split(",") if names else ():
        if name not in known:
            raise click.UsageError(f"There is no method {name}. {nearest(name, known)}")
    return [known[name] for name in names.split(",")] if names else list(METHODS)


def finished_cells(table: Path, rounds: int) -> set[tuple[str, str, int]]:
    """Returns the setting, the method and the seed of each cell of which the table has all rounds."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    count = Counter(
        ("{dataset}-{imbalance}x-m{per_class}-{trusted}".format_map(row), row["method"], int(row["seed"]))
        for row in rows
    )
    return {cell for cell, found in count.items() if found >= rounds}


@click.command()
@click.option("--settings", default="*", show_default=True, help="Patterns of settings, separated by commas.")
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Number of seeds.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Number of rounds.")
@click.option("--methods", help="Names of methods, separated by commas. [default: all]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes.")
@click.option("--output", type=click.Path(path_type=Path), default="runs/field", show_default=True)
@click.option(
    "--table",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Table of earlier results, such as docs/results/field.csv, whose seeds are not run again.",
)
@click.option("--features", type=click.Path(path_type=Path), default="runs/features", show_default=True)
def main(
    settings: str,
    seeds: int,
    rounds: int,
    methods: str | None,
    jobs: int,
    output: Path,
    table: Path | None,
    features: Path,
) -> None:
    """Run the field test, or resume it. The features are computed once and kept in the folder --features."""
    began = time.perf_counter()

    def tell(name: str, done: int, total: int) -> None:
        click.echo(f"{done}/{total} {name} ({time.perf_counter() - began:.0f} s)")

    chosen, chosen_methods = settings_like(settings), methods_named(methods)
    load = partial(load_features, folder=features)
    try:
        for dataset in dict.fromkeys(setting.dataset for setting in chosen):
            load(dataset)  # computed here, with all threads
        run_field(
            chosen,
            chosen_methods,
            output,
            seeds=range(seeds),
            rounds=rounds,
            jobs=jobs,
            load=load,
            known=finished_cells(table, rounds) if table else (),
            tell=tell,
        )
    except RarefishError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
