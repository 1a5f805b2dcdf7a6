"""Finding a recipe: a function in a Python file that returns an Experiment. Nothing here needs torch."""

import runpy
from pathlib import Path
from typing import Any

from rarefish.errors import ArgumentError, nearest
from rarefish.experiments.settings import Experiment


def load_recipe(address: str) -> Experiment:
    """What the function of FILE.py:FUNCTION returns."""
    file, _, name = address.rpartition(":")
    if not file or not Path(file).is_file():
        raise ArgumentError(f"A recipe is FILE.py:FUNCTION; there is no file {file or address!r}.")
    content = runpy.run_path(file)
    recipes: dict[str, Any] = {
        key: value for key, value in content.items() if callable(value) and _returns_experiment(value)
    }
    if name not in recipes:
        raise ArgumentError(f"{file} has no recipe {name!r}. {nearest(name, recipes)}")
    return recipes[name]()


def _returns_experiment(value: object) -> bool:
    return getattr(value, "__annotations__", {}).get("return") in (Experiment, "Experiment")
