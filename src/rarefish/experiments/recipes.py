"""Load a recipe: a function in a Python file that returns an Experiment. Does not import torch."""

import inspect
import runpy
from pathlib import Path
from typing import Any

from rarefish.errors import ArgumentError, nearest
from rarefish.experiments.settings import Experiment


def load_recipe(address: str) -> Experiment:
    """Returns the experiment that the function at FILE.py:FUNCTION returns."""
    file, _, name = address.rpartition(":")
    if not file or not Path(file).is_file():
        raise ArgumentError(f"A recipe is FILE.py:FUNCTION; there is no file {file or address!r}.")
    content: dict[str, Any] = runpy.run_path(file)
    known = [key for key, value in content.items() if inspect.isfunction(value) and value.__module__ == "<run_path>"]
    if name not in known:
        raise ArgumentError(f"{file} has no function {name!r}. {nearest(name, known)}")
    recipe = content[name]()
    if not isinstance(recipe, Experiment):
        raise ArgumentError(f"{address} returns a {type(recipe).__name__}; a recipe returns an Experiment.")
    return recipe
