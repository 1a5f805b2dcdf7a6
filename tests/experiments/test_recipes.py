"""Recipes: how they are found, and that those of the paper have its settings and its curves."""

import csv
import inspect
import runpy
from collections import Counter
from pathlib import Path

import make_field
import numpy as np
import pytest
from click.testing import CliRunner

from rarefish.acquisitions import ACQUISITIONS
from rarefish.errors import ArgumentError
from rarefish.experiments.feature_cache import load_features
from rarefish.experiments.frozen_features import LIMIT, OURS
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.settings import Experiment
from rarefish.report.run_data import read_paper
from tests.experiments.vectors import load_vectors
from tests.report.made import rounds

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))


def test_recipes_are_found_by_file_and_name() -> None:
    mnist = next(path for path in RECIPES if path.name == "mnist.py")
    assert isinstance(load_recipe(f"{mnist}:imbalanced"), Experiment)
    with pytest.raises(ArgumentError, match="no function 'imbalance'. Did you mean imbalanced"):
        load_recipe(f"{mnist}:imbalance")
    with pytest.raises(ArgumentError, match="the file 'nowhere.py' does not exist"):
        load_recipe("nowhere.py:x")


def test_the_papers_settings() -> None:
    """METHOD's table for MNIST, line by line."""
    mnist = load_recipe(f"{next(p for p in RECIPES if p.name == 'mnist.py')}:imbalanced")
    assert (mnist.budget, mnist.rounds, mnist.seeds, mnist.imbalances, mnist.holdout) == (125, 10, 10, (100,), 10_000)
    assert mnist.pretraining == {"epochs": 8, "step_size": 3} and mnist.training == {} and len(mnist.methods) == 10


@pytest.mark.parametrize(
    ("recipe", "num_cells", "num_baselines"),
    [
        ("mnist.py:headline", 12 * 10, 2 * 10),
        ("mnist.py:validation_too", 5 * 4 * 10, 2 * 4 * 10),
        ("svhn.py:svhn_headline", 12 * 5, 2 * 5),
        ("svhn.py:svhn_validation_too", 4 * 5, 2 * 5),
        ("imagenet.py:imagenet_posterior", 12, 2),
    ],
)
def test_recipes_of_the_main_results_have_both_baselines(recipe: str, num_cells: int, num_baselines: int) -> None:
    """Also that ours is compared with every part of it, and is trained as in the run that it replaces."""
    experiment = load_recipe(f"{ROOT / 'recipes' / recipe}")
    assert len(list(experiment.cells())) == num_cells and len(list(experiment.baseline_cells())) == num_baselines
    assert [baseline.acquisition for baseline in experiment.baselines] == ["trusted_only", "posterior_alone"]
    (ours,) = [method for method in experiment.methods if method.name.startswith("fisher posterior")]
    assert experiment.baselines[1].settings["layers"] == ours.settings["layers"]
    if recipe.endswith("headline"):
        acquisitions = {method.acquisition for method in experiment.methods}
        assert acquisitions > {"posterior_quotas", "posterior_likeliest", "posterior_entropy", "random", "badge"}
        assert any(m.settings.get("kernel") == "features" and m.learns_trusted_labels for m in experiment.methods)


def test_the_headline_of_svhn_is_trained_as_svhn_small() -> None:
    small, headline = (load_recipe(f"{ROOT / 'recipes/svhn.py'}:{name}") for name in ("svhn_small", "svhn_headline"))
    assert headline.training == small.training and headline.pretraining == small.pretraining
    assert (headline.seeds, headline.rounds, headline.budget) == (small.seeds, small.rounds, small.budget)


@pytest.mark.parametrize(
    ("recipe", "count", "known"),
    [
        ("mnist.py:imbalanced", 6, ("fisher density L80", 0.8381)),
        ("svhn.py:svhn_paper", 7, ("varR K64", 0.6472)),
        ("imagenet.py:imagenet_paper", 6, ("fisher prediction L768", 0.3285)),
    ],
)
def test_the_papers_recipes_name_its_curves(recipe: str, count: int, known: tuple[str, float]) -> None:
    experiment = load_recipe(f"{ROOT / 'recipes' / recipe}")
    records = [r for method in experiment.methods for r in rounds(method.name, 0, (0.1,))]
    pairs = list(zip(records, records, strict=True))
    drawn = {c.method: c for c in read_paper(ROOT / "docs/results/paper_curves.csv", experiment.dataset, pairs)}
    assert len(drawn) == count and drawn[known[0]].mean[1] == pytest.approx(known[1])


@pytest.mark.skipif(not (SHARED / "reference").exists(), reason="the paper's curves are not beside the checkout")
def test_the_papers_curves_are_those_that_were_read_off() -> None:
    """A few points stand in two figures of the paper; the first counts."""
    own, read = (read_points(path / "paper_curves.csv") for path in (ROOT / "docs/results", SHARED / "reference"))
    assert own == read and len(own) == 620


def read_points(path: Path) -> dict[tuple[str, ...], tuple[str, str]]:
    points: dict[tuple[str, ...], tuple[str, str]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            place = tuple(row[name] for name in ("dataset", "imbalance", "method", "param", "round"))
            points.setdefault(place, (row["accuracy"], row["std"]))
    return points


def test_the_settings_and_methods_of_the_field_test() -> None:
    field = runpy.run_path(str(ROOT / "recipes/field.py"))
    settings = field["all_settings"]()
    assert len({setting.name for setting in settings}) == len(settings) == (2 + 3 + 2 + 2) * 3 * 2
    budgets = {(setting.dataset, setting.budget, setting.rare) for setting in settings}
    assert budgets == {
        *(("caltech_100", 100, None), ("tiny_imagenet_100", 100, None)),
        *((name, 50, (5, 6, 7, 8, 9)) for name in ("fashion", "svhn")),
    }
    assert [method.acquisition for method in field["METHODS"] if method.acquisition not in ACQUISITIONS] == []
    names = {method.name for method in field["METHODS"]}
    assert len(names) == len(field["METHODS"]) == 19 and {OURS, LIMIT} < names
    for method in field["METHODS"]:
        inspect.signature(ACQUISITIONS[method.acquisition]).bind(None, 1, None, **method.settings)


def test_the_command_of_the_field_test(tmp_path: Path) -> None:
    command = runpy.run_path(str(ROOT / "recipes/field.py"))["main"]
    train, test = load_vectors("vectors")
    for name in ("fashion", "svhn"):  # vectors of ten classes, in the files of the features
        labels = [np.arange(len(part)) % 10 for part in (train, test)]
        np.savez(
            tmp_path / f"{name}.npz", train_z=train.values, train_y=labels[0], test_z=test.values, test_y=labels[1]
        )
    load_features.cache_clear()
    arguments = ["--settings", "svhn-1x-m3-*,fashion-100x-m3-trained", "--seeds", "1", "--rounds", "1"]
    places = ["--output", str(tmp_path / "run"), "--features", str(tmp_path), "--methods", "random,margin"]
    done = CliRunner().invoke(command, [*arguments, *places])
    assert done.exit_code == 0 and "3/3 " in done.output
    names = ["svhn-1x-m3-withheld", "svhn-1x-m3-trained", "fashion-100x-m3-trained"]
    found = sorted(path.relative_to(tmp_path / "run").parts[0] for path in tmp_path.glob("run/*/records/*.jsonl"))
    assert found == sorted(3 * names)

    rows = [row for row in make_field.rows_of(tmp_path / "run") if row["seed"] == "0"]
    table = tmp_path / "field.csv"
    table.write_text(make_field.to_csv(rows))
    more = ["--output", str(tmp_path / "more"), *places[2:4], "--table", str(table), "--seeds", "2"]
    done = CliRunner().invoke(command, [*arguments[:2], "--rounds", "1", *more, "--methods", "random,entropy"])
    load_features.cache_clear()
    assert done.exit_code == 0, done.output
    found = [(row["method"], row["seed"]) for row in make_field.rows_of(tmp_path / "more")]
    assert Counter(found) == dict.fromkeys(
        [("entropy", "0"), ("random", "1"), ("entropy", "1"), ("trusted_only", "0"), ("trusted_only", "1")], 3
    )
    for wrong, message in (
        (["--settings", "mnist*"], "No setting is like mnist"),
        (["--methods", "randm"], "There is no method randm. Did you mean random?"),
    ):
        refused = CliRunner().invoke(command, [*wrong, *places[:4]])
        assert refused.exit_code != 0 and message in refused.output
