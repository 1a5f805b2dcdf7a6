"""The data sets experiments run on, cut and biased for a cell."""

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
from rarefish.data.digits import read_digits
from rarefish.data.image_files import ImageFiles, read_folder
from rarefish.data.splits import Splits
from rarefish.data.tile_sheets import find_sheets, read_sheets
from rarefish.errors import ArgumentError, DataError, list_some, nearest
from rarefish.experiments.biased_splits import Cut, Wanted, cut, wanted_by
from rarefish.experiments.settings import Cell, Experiment
from rarefish.models.preprocessing import MEAN, STD
from rarefish.training.checkpoints import fingerprint_of

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


def read_mnist(name: str, _: int = 0) -> tuple[Arrays, Arrays]:
    """Training and test set of MNIST or Fashion-MNIST."""
    folder = data_folder(name)

    def part(prefix: str) -> Arrays:
        files = [next(iter(sorted(folder.glob(f"{prefix}-{kind}*"))), None) for kind in ("images", "labels")]
        if None in files:
            raise DataError(f"{folder} has no {prefix}-images and {prefix}-labels files.")
        return read_idx(*[file for file in files if file])

    return part("train"), part("t10k")


def read_saved(name: str, _: int = 0, *, pixels: int) -> tuple[Arrays, Arrays]:
    """Training and test set as sheets of tiles, or out of one NAME.npz with train_x, train_y, test_x, test_y."""
    folder = data_folder(name)
    if find_sheets(folder, "train"):
        return read_sheets(folder, "train", pixels), read_sheets(folder, "test", pixels)
    path = folder / f"{name}.npz"
    return read_npz(path, "train_x", "train_y"), read_npz(path, "test_x", "test_y")


def read_svhn_train(name: str, size: int = 0) -> tuple[Arrays, Arrays]:
    """SVHN's train and test as published, or as it was saved."""
    folder = data_folder(name)
    if not (folder / "train_32x32.mat").exists():
        return read_saved(name, size, pixels=32)
    return read_svhn(folder / "train_32x32.mat"), read_svhn(folder / "test_32x32.mat")


def read_svhn_extra(_: str, __: int = 0) -> tuple[Arrays, Arrays]:
    """SVHN's train and extra together, and test, as published."""
    folder = data_folder("svhn")
    train, extra, test = (read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "extra", "test"))
    return joined([train, extra]), test


def joined(parts: list[Arrays]) -> Arrays:
    """One after another."""
    return Arrays(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels")))


def read_imagenet(name: str, size: int) -> tuple[ImageFiles, ImageFiles]:
    """ImageNet's train and val, one folder a class, as they are mostly kept; no image is looked at yet."""
    folder = data_folder(name)
    train, test = (
        replace(read_folder(folder / part, size=(size, size), on_error="later"), mean=MEAN, std=STD)
        for part in ("train", "val")
    )
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise DataError(f"{folder}: train and val do not have the same classes: {list_some(odd)} are in one alone.")
    return train, test


def read_bundled(_: str, __: int = 0) -> tuple[Arrays, Arrays]:
    """The package's own digits as if they were a training set: the demo's pool and validation set together."""
    pool, validation, test = read_digits()
    return joined([pool, validation]), test


DATASETS: dict[str, Callable[[str, int], tuple[Any, Any]]] = {
    "mnist": read_mnist,
    "fashion-mnist": read_mnist,
    "svhn": read_svhn_train,
    "svhn-extra": read_svhn_extra,
    "tiny_imagenet_100": partial(read_saved, pixels=64),
    "imagenet": read_imagenet,
    "digits": read_bundled,
}
"""(name, height and width that image files are brought to) -> training and test set, both Arrays or both ImageFiles."""
AS_BYTES = {"svhn-extra"}
"""Too large to lie in memory as numbers, once for each seed."""


@lru_cache(maxsize=2)
def read_dataset(name: str, image_size: int = 224) -> tuple[Any, Any]:
    """(training set, test set) of that name, read once."""
    if name not in DATASETS:
        raise ArgumentError(f"There is no data set {name!r}. {nearest(name, DATASETS)}")
    return DATASETS[name](name, image_size)


def data_key(experiment: Experiment) -> str:
    """Differs where an experiment would see other images: all labels, and some images or the files' names."""
    return fingerprint_of(*(_told_by(part) for part in read_dataset(experiment.dataset, experiment.image_size)))


def _told_by(part: Arrays | ImageFiles) -> tuple[object, ...]:
    if isinstance(part, ImageFiles):
        return part.labels, [f"{path.parent.name}/{path.name}" for path in part.paths]
    some = np.ascontiguousarray(part.images[:: len(part) // 100 + 1])
    return torch.from_numpy(part.labels.astype(np.int64)), torch.from_numpy(some)


@lru_cache(maxsize=32)
def make_splits(wanted: Wanted, device: str) -> Splits[Any]:
    """The biased pool, validation and test set of a seed, imbalance and validation size; the same for all methods."""
    train, test = read_dataset(wanted.dataset, wanted.image_size)
    truth, tested = (np.asarray(part.labels) for part in (train, test))
    num_classes = int(truth.max()) + 1
    rows = cut(truth, tested, num_classes, wanted)
    is_in_files = isinstance(train, ImageFiles)
    if wanted.doubts.junk and (is_in_files or wanted.dataset in AS_BYTES):
        raise ArgumentError(f"Junk is made of images that lie in memory as numbers; those of {wanted.dataset} do not.")
    source = test if wanted.validation_is_test else train
    if is_in_files:
        parts = _cut_files(train, source, test, rows)
    elif wanted.dataset in AS_BYTES:
        parts = _cut_bytes(wanted, rows, device)
    else:
        parts = _cut_arrays(train, source, test, rows, device, wanted)
    return Splits(*parts, num_classes=num_classes, rare=wanted.rare)


def _cut_arrays(
    train: Arrays, source: Arrays, test: Arrays, rows: Cut, device: str, wanted: Wanted
) -> list[TensorDataset]:
    """As numbers on the device."""
    pool, trusted = train[rows.pool], Arrays(source.images[rows.trusted], rows.trusted_labels)
    pool = pool.with_junk(wanted.doubts.junk, wanted.seed) if wanted.doubts.junk else pool
    return normalized([part.to_tensors(device) for part in (pool, trusted, test)])


def _cut_bytes(wanted: Wanted, rows: Cut, device: str) -> list[Pixels]:
    """As bytes on the device, which all seeds share."""
    train, test = read_dataset(wanted.dataset, wanted.image_size)
    whole, tested = bytes_on(wanted.dataset, wanted.image_size, device)
    mean, deviation = (part.to(device) for part in scale_of(train.images, rows.pool))

    def pixels(source: Tensor, own: np.ndarray, labels: np.ndarray) -> Pixels:
        return Pixels(source, torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64)), mean, deviation)

    return [
        pixels(whole, rows.pool, train.labels[rows.pool]),
        pixels(tested if wanted.validation_is_test else whole, rows.trusted, rows.trusted_labels),
        pixels(tested, np.arange(len(test)), test.labels),
    ]


@lru_cache(maxsize=2)
def bytes_on(name: str, image_size: int, device: str) -> tuple[Tensor, Tensor]:
    """Images of training and test set on the device; on a CPU they are those that were read, not copies."""
    train, test = (torch.from_numpy(part.images).to(device) for part in read_dataset(name, image_size))
    return train, test


def _cut_files(train: ImageFiles, source: ImageFiles, test: ImageFiles, rows: Cut) -> list[ImageFiles]:
    """By name; a validation set that is the whole test set is the same object, and need not be looked at twice."""
    trusted = replace(source.only(rows.trusted.tolist()), labels=tuple(rows.trusted_labels.tolist()))
    return [train.only(rows.pool.tolist()), test if trusted == test else trusted, test]


def splits_of(experiment: Experiment, cell: Cell, device: str) -> Splits[Any]:
    return make_splits(wanted_by(experiment, cell.seed, cell.imbalance, cell.validation_size), device)
