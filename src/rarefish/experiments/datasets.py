"""The datasets of experiments, and their biased splits for a cell."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from rarefish.data.arrays import Arrays, Pixels, normalized, read_idx, read_npz, read_svhn, scale_of
from rarefish.data.digits import load_digits, read_digits
from rarefish.data.image_files import ImageFiles, read_folder
from rarefish.data.imbalance import check_classes, cut_each, long_tail, mistaken, step_imbalance, stratified
from rarefish.data.splits import Splits
from rarefish.data.tile_sheets import find_sheets, read_sheets
from rarefish.errors import ArgumentError, DataError, list_some, nearest
from rarefish.experiments.settings import Cell, Circumstances, Experiment
from rarefish.models.preprocessing import MEAN, STD
from rarefish.training.checkpoints import fingerprint_of

FOLDER_VARIABLE = "RAREFISH_DATA"
"""Environment variable that names the folder with the datasets; ../shared/data is also searched."""


def data_folder(name: str) -> Path:
    """Returns the folder with the files of a dataset."""
    places = [Path(os.environ[FOLDER_VARIABLE])] if FOLDER_VARIABLE in os.environ else []
    places += [Path("../shared/data"), Path("data"), Path("/usr/share/datasets")]
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise DataError(f"Found no data folder {name!r}. Set {FOLDER_VARIABLE} to the folder that contains it.")


def read_mnist(name: str, _: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the training and test sets of MNIST or Fashion-MNIST."""
    folder = data_folder(name)

    def part(prefix: str) -> Arrays:
        files = [next(iter(sorted(folder.glob(f"{prefix}-{kind}*"))), None) for kind in ("images", "labels")]
        if None in files:
            raise DataError(f"{folder} has no {prefix}-images and {prefix}-labels files.")
        return read_idx(*[file for file in files if file])

    return part("train"), part("t10k")


def read_saved(name: str, _: int = 0, *, pixels: int) -> tuple[Arrays, Arrays]:
    """Returns the training and test sets from tile sheets, or from NAME.npz with train_x, train_y, test_x, test_y."""
    folder = data_folder(name)
    if find_sheets(folder, "train"):
        return read_sheets(folder, "train", pixels), read_sheets(folder, "test", pixels)
    path = folder / f"{name}.npz"
    return read_npz(path, "train_x", "train_y"), read_npz(path, "test_x", "test_y")


def read_svhn_train(name: str, size: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the training and test sets of SVHN, from the original files or as saved by rarefish."""
    folder = data_folder(name)
    if not (folder / "train_32x32.mat").exists():
        return read_saved(name, size, pixels=32)
    return read_svhn(folder / "train_32x32.mat"), read_svhn(folder / "test_32x32.mat")


def read_svhn_extra(_: str, __: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the train and extra sets of SVHN as one training set, and the test set, from the original files."""
    folder = data_folder("svhn")
    train, extra, test = (read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "extra", "test"))
    return joined([train, extra]), test


def joined(parts: list[Arrays]) -> Arrays:
    """Returns the arrays concatenated."""
    return Arrays(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels")))


def read_imagenet(name: str, size: int) -> tuple[ImageFiles, ImageFiles]:
    """Returns ImageNet's train and val sets from folders with one subfolder per class, without opening images."""
    folder = data_folder(name)
    train, test = (
        replace(read_folder(folder / part, size=(size, size), on_error="later"), mean=MEAN, std=STD)
        for part in ("train", "val")
    )
    if train.classes != test.classes:
        different = sorted(set(train.classes) ^ set(test.classes))
        raise DataError(
            f"{folder}: train and val have different classes: {list_some(different)} are in only one of them."
        )
    return train, test


def read_bundled(_: str, __: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the bundled digits: pool and validation set together as the training set, and the test set."""
    pool, validation, test = read_digits()
    return joined([pool, validation]), test


DATASETS: dict[str, Callable[[str, int], tuple[Any, Any]]] = {
    "mnist": read_mnist,
    "fashion-mnist": read_mnist,
    "svhn": read_svhn_train,
    "svhn-extra": read_svhn_extra,
    "tiny_imagenet_100": partial(read_saved, pixels=64),
    "caltech_100": partial(read_saved, pixels=128),
    "imagenet": read_imagenet,
    "digits": read_bundled,
}
"""Functions that map (name, image size) to (training set, test set), both of which are Arrays or ImageFiles."""
SPLIT_DATASETS: dict[str, Callable[[], Splits[TensorDataset]]] = {"biased-digits": load_digits}
"""Datasets that already have a biased pool, a validation set and a test set, which are the same for every seed."""
AS_BYTES = {"svhn-extra"}
"""Datasets that are kept as bytes, because they would need too much memory per seed as floats."""


@lru_cache(maxsize=2)
def read_dataset(name: str, image_size: int = 224) -> tuple[Any, Any]:
    """Returns the training and test sets with this name; the last two datasets are cached."""
    if name not in DATASETS:
        raise ArgumentError(f"There is no dataset {name!r}. {nearest(name, [*DATASETS, *SPLIT_DATASETS])}")
    return DATASETS[name](name, image_size)


def data_key(experiment: Experiment) -> str:
    """Returns a fingerprint of the data: all labels, and some images or the names of the files."""
    if experiment.dataset in SPLIT_DATASETS:
        splits = SPLIT_DATASETS[experiment.dataset]()
        return fingerprint_of(*map(_fingerprint_parts, (splits.pool, splits.validation, splits.test)))
    return fingerprint_of(*map(_fingerprint_parts, read_dataset(experiment.dataset, experiment.image_size)))


def _fingerprint_parts(part: Arrays | ImageFiles | TensorDataset) -> tuple[object, ...]:
    if isinstance(part, TensorDataset):
        images, labels = part.tensors
        return labels, images[:: len(part) // 100 + 1]
    if isinstance(part, ImageFiles):
        return part.labels, [f"{path.parent.name}/{path.name}" for path in part.paths]
    some = np.ascontiguousarray(part.images[:: len(part) // 100 + 1])
    return torch.from_numpy(part.labels.astype(np.int64)), torch.from_numpy(some)


def splits_of(experiment: Experiment, cell: Cell, device: str) -> Splits[Any]:
    """Returns the biased pool, the validation set and the test set of a cell; they are the same for all methods."""
    methods, starts, restarts = experiment.methods, experiment.starts, experiment.restarts
    # Use the first cell with these splits, so that all cells with the same splits share one cache entry.
    return make_splits(experiment, replace(cell, method=methods[0], start=starts[0], restart=restarts[0]), device)


@lru_cache(maxsize=32)
def make_splits(experiment: Experiment, cell: Cell, device: str) -> Splits[Any]:
    """Returns the splits of a cell; the last ones are cached."""
    if experiment.dataset in SPLIT_DATASETS:
        return _own_splits(experiment, device)
    train, test = read_dataset(experiment.dataset, experiment.image_size)
    labels, test_labels = (np.asarray(part.labels) for part in (train, test))
    num_classes = int(labels.max()) + 1
    rows = choose_rows(labels, test_labels, num_classes, experiment, cell)
    if isinstance(train, ImageFiles):
        split = _split_files
    else:
        split = _split_bytes if experiment.dataset in AS_BYTES else _split_arrays
    if experiment.circumstances.junk and split is not _split_arrays:
        raise ArgumentError(
            f"Junk images can only be made from images in memory, but those of {experiment.dataset} are not."
        )
    return Splits(*split(experiment, cell, rows, device), num_classes=num_classes, rare=experiment.rare)


def _own_splits(experiment: Experiment, device: str) -> Splits[TensorDataset]:
    """Returns the splits that the dataset already has; raises an error unless the settings match them."""
    splits = SPLIT_DATASETS[experiment.dataset]()
    labels, num_trusted = splits.pool.tensors[1], len(splits.validation)
    num_rare = int(torch.isin(labels, torch.tensor(splits.rare)).sum())
    given = {
        "rare": splits.rare,
        "imbalances": (round((len(labels) - num_rare) / num_rare),),
        "validation_sizes": (num_trusted,),
        "holdout": num_trusted,
        "circumstances": Circumstances(train_on_validation=experiment.circumstances.train_on_validation),
    }
    different = [f"{name}={value}" for name, value in given.items() if getattr(experiment, name) != value]
    if different:
        raise ArgumentError(
            f"The dataset {experiment.dataset!r} is already split. Set {', '.join(different)} in the recipe."
        )
    parts = (splits.pool, splits.validation, splits.test)
    on_device = [TensorDataset(*(tensor.to(device) for tensor in part.tensors)) for part in parts]
    return Splits(*on_device, num_classes=splits.num_classes, rare=splits.rare)


Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The rows of the pool and of the trusted images, and the labels of the latter, from `choose_rows`."""


def _split_arrays(experiment: Experiment, cell: Cell, rows: Rows, device: str) -> list[TensorDataset]:
    """Returns the splits as normalized float tensors on the device."""
    train, test = read_dataset(experiment.dataset, experiment.image_size)
    pool_rows, trusted_rows, trusted_labels = rows
    pool, junk = train[pool_rows], experiment.circumstances.junk
    trusted = Arrays((test if experiment.validation_is_test else train).images[trusted_rows], trusted_labels)
    pool = pool.with_junk(junk, cell.seed) if junk else pool
    return normalized([part.to_tensors(device) for part in (pool, trusted, test)])


def _split_bytes(experiment: Experiment, _: Cell, rows: Rows, device: str) -> list[Pixels]:
    """Returns the splits as views of bytes on the device, which all seeds share."""
    train, test = read_dataset(experiment.dataset, experiment.image_size)
    pool_rows, trusted_rows, trusted_labels = rows
    whole, tested = bytes_on(experiment.dataset, experiment.image_size, device)
    mean, deviation = (part.to(device) for part in scale_of(train.images, pool_rows))

    def pixels(source: Tensor, own: np.ndarray, labels: np.ndarray) -> Pixels:
        return Pixels(source, torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64)), mean, deviation)

    return [
        pixels(whole, pool_rows, train.labels[pool_rows]),
        pixels(tested if experiment.validation_is_test else whole, trusted_rows, trusted_labels),
        pixels(tested, np.arange(len(test)), test.labels),
    ]


@lru_cache(maxsize=2)
def bytes_on(name: str, image_size: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns the images of the training and test sets on the device; on a CPU, they are not copied."""
    train, test = (torch.from_numpy(part.images).to(device) for part in read_dataset(name, image_size))
    return train, test


def _split_files(experiment: Experiment, _: Cell, rows: Rows, __: str) -> list[ImageFiles]:
    """Returns the splits as image files. If the validation set is the test set, both are the same object."""
    train, test = read_dataset(experiment.dataset, experiment.image_size)
    pool_rows, trusted_rows, trusted_labels = rows
    source = test if experiment.validation_is_test else train
    trusted = replace(source.only(trusted_rows.tolist()), labels=tuple(trusted_labels.tolist()))
    return [train.only(pool_rows.tolist()), test if trusted == test else trusted, test]


def choose_rows(
    train: np.ndarray, test: np.ndarray, num_classes: int, experiment: Experiment, cell: Cell
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the pool and the trusted images of a cell, given the labels of the training and test sets.

    Returns:
        The rows of the training set that form the pool.
        The rows of the trusted images, in the training set or, with `validation_is_test`, in the test set.
        The labels of the trusted images, some of which are wrong if there is label noise.
    """
    unknown = [c for c in experiment.rare if not 0 <= c < num_classes]
    if unknown:
        raise ArgumentError(
            f"rare= contains class {list_some(unknown)}, but {experiment.dataset} has classes 0 to {num_classes - 1}. "
            "Change rare= in the recipe."
        )
    is_test, circumstances = experiment.validation_is_test, experiment.circumstances
    source, held = (test, np.arange(len(test))) if is_test else (train, _hold_out(train, experiment, cell))
    trusted = held[stratified(source[held], cell.validation_size, cell.seed)]
    check_classes(source[trusted], num_classes, "validation set")
    if circumstances.validation_imbalance > 1:
        ratio = circumstances.validation_imbalance
        trusted = trusted[step_imbalance(source[trusted], experiment.rare, ratio, cell.seed)]
    noisy_labels = mistaken(source[trusted], circumstances.validation_noise, num_classes, cell.seed)
    all_rows = np.arange(len(train))
    rest = all_rows if is_test else np.setdiff1d(all_rows, held)
    return rest[_biased(train[rest], experiment, cell)], trusted, noisy_labels


def _hold_out(labels: np.ndarray, experiment: Experiment, cell: Cell) -> np.ndarray:
    try:
        return stratified(labels, experiment.holdout, cell.seed)
    except ArgumentError as error:
        raise ArgumentError(
            f"holdout={experiment.holdout}: {error} Change holdout= or validation_sizes= in the recipe."
        ) from None


def _biased(labels: np.ndarray, experiment: Experiment, cell: Cell) -> np.ndarray:
    if experiment.circumstances.long_tail:
        return long_tail(labels, cell.imbalance, cell.seed)
    return (cut_each if experiment.circumstances.each_cut else step_imbalance)(
        labels, experiment.rare, cell.imbalance, cell.seed
    )
