"""Experiments over methods × seeds × imbalances × validation sizes."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.experiments.datasets import DATASETS, SPLIT_DATASETS, read_dataset, splits_of
    from rarefish.experiments.recipes import demo_recipe, load_recipe
    from rarefish.experiments.run_folder import RunFolder, open_run_folder
    from rarefish.experiments.runner import run_experiment
    from rarefish.experiments.settings import Cell, Circumstances, Experiment, Method

__all__ = [
    "DATASETS",
    "SPLIT_DATASETS",
    "Cell",
    "Circumstances",
    "Experiment",
    "Method",
    "RunFolder",
    "demo_recipe",
    "load_recipe",
    "open_run_folder",
    "read_dataset",
    "run_experiment",
    "splits_of",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "datasets": ("DATASETS", "SPLIT_DATASETS", "read_dataset", "splits_of"),
        "recipes": ("demo_recipe", "load_recipe"),
        "run_folder": ("RunFolder", "open_run_folder"),
        "runner": ("run_experiment",),
        "settings": ("Cell", "Circumstances", "Experiment", "Method"),
    },
)
