"""Recipes, which are functions that return an Experiment: the recipe of the demo, and those in Python files."""

import inspect
import runpy
from pathlib import Path
from typing import Any

from rarefish.errors import ArgumentError, nearest
from rarefish.experiments.settings import Experiment, Method


def load_recipe(address: str) -> Experiment:
    """Returns the experiment that the function at FILE.py:FUNCTION returns."""
    file, _, name = address.rpartition(":")
    if not file or not Path(file).is_file():
        raise ArgumentError(f"A recipe is FILE.py:FUNCTION, but the file {file or address!r} does not exist.")
    content: dict[str, Any] = runpy.run_path(file)
    known = [key for key, value in content.items() if inspect.isfunction(value) and value.__module__ == "<run_path>"]
    if name not in known:
        raise ArgumentError(f"{file} has no function {name!r}. {nearest(name, known)}")
    recipe = content[name]()
    if not isinstance(recipe, Experiment):
        raise ArgumentError(f"{address} returns a {type(recipe).__name__}, but a recipe must return an Experiment.")
    return recipe


def demo_recipe(num_seeds: int = 3, num_rounds: int = 5) -> Experiment:
    """Returns the experiment of the demo, which compares three acquisitions on the bundled digits."""
    return Experiment(
        name="demo",
        dataset="biased-digits",
        model="lenet",
        methods=tuple(Method(name=name, acquisition=name) for name in ("fisher", "entropy", "random")),
        baselines=(
            Method(name="trusted images only", acquisition="trusted_only"),
            Method(name="posterior alone", acquisition="posterior_alone"),
        ),
        seeds=num_seeds,
        rounds=num_rounds,
        budget=40,
        imbalances=(100,),
        holdout=500,
        validation_sizes=(500,),
        pretraining={"epochs": 4, "step_size": 2},  # half as many epochs as in the paper, to keep the demo short
    )
