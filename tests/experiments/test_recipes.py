"""Recipes: how they are found, and that those of the paper have its settings and its curves."""

import csv
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.settings import Experiment
from rarefish.report.run_data import read_paper
from tests.report.made import rounds

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))


def test_recipes_are_found_by_file_and_name() -> None:
    mnist = next(path for path in RECIPES if path.name == "mnist.py")
    assert isinstance(load_recipe(f"{mnist}:imbalanced"), Experiment)
    with pytest.raises(ArgumentError, match="no function 'imbalance'. Did you mean imbalanced"):
        load_recipe(f"{mnist}:imbalance")
    with pytest.raises(ArgumentError, match="there is no file 'nowhere.py'"):
        load_recipe("nowhere.py:x")


def test_the_papers_settings() -> None:
    """METHOD's table for MNIST, line by line."""
    mnist = load_recipe(f"{next(p for p in RECIPES if p.name == 'mnist.py')}:imbalanced")
    assert (mnist.budget, mnist.rounds, mnist.seeds, mnist.imbalances, mnist.holdout) == (125, 10, 10, (100,), 10_000)
    assert mnist.pretraining == {"epochs": 8, "step_size": 3} and mnist.training == {} and len(mnist.methods) == 10


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
