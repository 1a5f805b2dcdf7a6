"""The data sets experiments run on, cut and biased for a cell."""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from rarefish.datasets.arrays import Arrays, normalized, read_idx, read_npz
from rarefish.datasets.bias import check_classes, cut_each, long_tail, mistaken, step_imbalance, stratified
from rarefish.datasets.bundled import read_digits
from rarefish.datasets.sheets import find_sheets, read_sheets
from rarefish.datasets.splits import Splits
from rarefish.errors import ArgumentError, DataError, nearest
from rarefish.experiments.settings import Cell, Experiment

FOLDER_VARIABLE = "RAREFISH_DATA"
"""Names the folder with the data sets; ../shared/data beside the checkout is looked at as well."""


def data_folder(name: str) -> Path:
    """Where a data set's files are."""
    places = [Path(os.environ[FOLDER_VARIABLE])] if FOLDER_VARIABLE in os.environ else []
    places += [Path("../shared/data"), Path("data"), Path("/usr/share/datasets")]
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise DataError(f"Found no folder {name!r} with the data. Set {FOLDER_VARIABLE} to the folder that has it.")


def read_mnist(name: str) -> tuple[Arrays, Arrays]:
    """Training and test set of MNIST or Fashion-MNIST."""
    folder = data_folder(name)

    def part(prefix: str) -> Arrays:
        files = [next(iter(sorted(folder.glob(f"{prefix}-{kind}*"))), None) for kind in ("images", "labels")]
        if None in files:
            raise DataError(f"{folder} has no {prefix}-images and {prefix}-labels files.")
        return read_idx(*[file for file in files if file])

    return part("train"), part("t10k")


def read_saved(name: str, pixels: int) -> tuple[Arrays, Arrays]:
    """Training and test set as sheets of tiles, or out of one NAME.npz with train_x, train_y, test_x, test_y."""
    folder = data_folder(name)
    if find_sheets(folder, "train"):
        return read_sheets(folder, "train", pixels), read_sheets(folder, "test", pixels)
    path = folder / f"{name}.npz"
    return read_npz(path, "train_x", "train_y"), read_npz(path, "test_x", "test_y")


def read_bundled(_: str) -> tuple[Arrays, Arrays]:
    """The package's own digits as if they were a training set: the demo's pool and validation set together."""
    pool, validation, test = read_digits()
    both = (np.concatenate([getattr(part, name) for part in (pool, validation)]) for name in ("images", "labels"))
    return Arrays(*both), test


DATASETS: dict[str, Callable[[str], tuple[Arrays, Arrays]]] = {
    "mnist": read_mnist,
    "fashion-mnist": read_mnist,
    "svhn": partial(read_saved, pixels=32),
    "tiny_imagenet_100": partial(read_saved, pixels=64),
    "digits": read_bundled,
}


@lru_cache(maxsize=2)
def read_dataset(name: str) -> tuple[Arrays, Arrays]:
    """(training set, test set) of that name, read once."""
    if name not in DATASETS:
        raise ArgumentError(f"There is no data set {name!r}. {nearest(name, DATASETS)}")
    return DATASETS[name](name)


@lru_cache(maxsize=32)
def make_splits(experiment_key: tuple, device: str) -> Splits:
    """The biased pool, validation and test set of a seed, imbalance and validation size; the same for all methods."""
    dataset, seed, imbalance, size, holdout, rare, doubts = experiment_key
    train, test = read_dataset(dataset)
    num_classes = int(train.labels.max()) + 1
    try:
        held = stratified(train.labels, holdout, seed)
    except ArgumentError as error:
        raise ArgumentError(f"holdout={holdout}: {error} Set holdout= and validation_sizes= in the recipe.") from None
    rest = train[np.setdiff1d(np.arange(len(train)), held)]
    trusted = train[held][stratified(train.labels[held], size, seed)]
    check_classes(trusted.labels, num_classes, "validation set")
    if doubts.validation_imbalance > 1:
        trusted = trusted[step_imbalance(trusted.labels, rare, doubts.validation_imbalance, seed)]
    trusted = Arrays(trusted.images, mistaken(trusted.labels, doubts.validation_noise, num_classes, seed))
    if doubts.long_tail:
        kept = long_tail(rest.labels, imbalance, seed)
    else:
        kept = (cut_each if doubts.each_cut else step_imbalance)(rest.labels, rare, imbalance, seed)
    pool = rest[kept]
    pool = pool.with_junk(doubts.junk, seed) if doubts.junk else pool
    parts = normalized([part.to_tensors(device) for part in (pool, trusted, test)])
    return Splits(*parts, num_classes=num_classes, rare=rare)


def splits_of(experiment: Experiment, cell: Cell, device: str) -> Splits:
    of_cell = (cell.seed, cell.imbalance, cell.validation_size)
    key = (experiment.dataset, *of_cell, experiment.holdout, experiment.rare, experiment.circumstances)
    return make_splits(key, device)
