"""The data sets of experiments, and their biased splits for a cell."""

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
from rarefish.experiments.biased_splits import SplitRows, SplitSettings, choose_rows, split_settings
from rarefish.experiments.settings import Cell, Experiment
from rarefish.models.preprocessing import MEAN, STD
from rarefish.training.checkpoints import fingerprint_of

FOLDER_VARIABLE = "RAREFISH_DATA"
"""Environment variable that names the folder with the data sets; ../shared/data is also searched."""


def data_folder(name: str) -> Path:
    """Returns the folder with the files of a data set."""
    places = [Path(os.environ[FOLDER_VARIABLE])] if FOLDER_VARIABLE in os.environ else []
    places += [Path("../shared/data"), Path("data"), Path("/usr/share/datasets")]
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise DataError(f"Found no folder {name!r} with the data. Set {FOLDER_VARIABLE} to the folder that has it.")


def read_mnist(name: str, _: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the training and test set of MNIST or Fashion-MNIST."""
    folder = data_folder(name)

    def part(prefix: str) -> Arrays:
        files = [next(iter(sorted(folder.glob(f"{prefix}-{kind}*"))), None) for kind in ("images", "labels")]
        if None in files:
            raise DataError(f"{folder} has no {prefix}-images and {prefix}-labels files.")
        return read_idx(*[file for file in files if file])

    return part("train"), part("t10k")


def read_saved(name: str, _: int = 0, *, pixels: int) -> tuple[Arrays, Arrays]:
    """Returns the training and test set from tile sheets, or from NAME.npz with train_x, train_y, test_x, test_y."""
    folder = data_folder(name)
    if find_sheets(folder, "train"):
        return read_sheets(folder, "train", pixels), read_sheets(folder, "test", pixels)
    path = folder / f"{name}.npz"
    return read_npz(path, "train_x", "train_y"), read_npz(path, "test_x", "test_y")


def read_svhn_train(name: str, size: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the train and test sets of SVHN, from the published files or as saved by rarefish."""
    folder = data_folder(name)
    if not (folder / "train_32x32.mat").exists():
        return read_saved(name, size, pixels=32)
    return read_svhn(folder / "train_32x32.mat"), read_svhn(folder / "test_32x32.mat")


def read_svhn_extra(_: str, __: int = 0) -> tuple[Arrays, Arrays]:
    """Returns the train and extra sets of SVHN joined, and the test set, from the published files."""
    folder = data_folder("svhn")
    train, extra, test = (read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "extra", "test"))
    return joined([train, extra]), test


def joined(parts: list[Arrays]) -> Arrays:
    """Returns the arrays concatenated."""
    return Arrays(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels")))


def read_imagenet(name: str, size: int) -> tuple[ImageFiles, ImageFiles]:
    """Returns ImageNet's train and val sets from one folder per class; no image is opened yet."""
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
    """Returns the bundled digits: the demo's pool and validation set joined as training set, and the test set."""
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
"""Functions (name, image size) -> (training set, test set), which are both Arrays or both ImageFiles."""
AS_BYTES = {"svhn-extra"}
"""Data sets that stay as bytes, because as floats they would need too much memory for each seed."""


@lru_cache(maxsize=2)
def read_dataset(name: str, image_size: int = 224) -> tuple[Any, Any]:
    """Returns the training and test set of that name; the last two data sets are cached."""
    if name not in DATASETS:
        raise ArgumentError(f"There is no data set {name!r}. {nearest(name, DATASETS)}")
    return DATASETS[name](name, image_size)


def data_key(experiment: Experiment) -> str:
    """Returns a fingerprint of the data: of all labels, and of some images or the names of the files."""
    return fingerprint_of(
        *(_fingerprint_parts(part) for part in read_dataset(experiment.dataset, experiment.image_size))
    )


def _fingerprint_parts(part: Arrays | ImageFiles) -> tuple[object, ...]:
    if isinstance(part, ImageFiles):
        return part.labels, [f"{path.parent.name}/{path.name}" for path in part.paths]
    some = np.ascontiguousarray(part.images[:: len(part) // 100 + 1])
    return torch.from_numpy(part.labels.astype(np.int64)), torch.from_numpy(some)


@lru_cache(maxsize=32)
def make_splits(settings: SplitSettings, device: str) -> Splits[Any]:
    """Returns the biased pool, the validation set and the test set; they are the same for all methods."""
    train, test = read_dataset(settings.dataset, settings.image_size)
    truth, tested = (np.asarray(part.labels) for part in (train, test))
    num_classes = int(truth.max()) + 1
    rows = choose_rows(truth, tested, num_classes, settings)
    is_in_files = isinstance(train, ImageFiles)
    if settings.circumstances.junk and (is_in_files or settings.dataset in AS_BYTES):
        raise ArgumentError(
            f"Junk images can only be made of arrays in memory; {settings.dataset} is not kept as such."
        )
    source = test if settings.validation_is_test else train
    if is_in_files:
        parts = _split_files(train, source, test, rows)
    elif settings.dataset in AS_BYTES:
        parts = _split_bytes(settings, rows, device)
    else:
        parts = _split_arrays(train, source, test, rows, device, settings)
    return Splits(*parts, num_classes=num_classes, rare=settings.rare)


def _split_arrays(
    train: Arrays, source: Arrays, test: Arrays, rows: SplitRows, device: str, settings: SplitSettings
) -> list[TensorDataset]:
    """Returns the splits as normalized float tensors on the device."""
    pool, trusted = train[rows.pool], Arrays(source.images[rows.trusted], rows.trusted_labels)
    pool = pool.with_junk(settings.circumstances.junk, settings.seed) if settings.circumstances.junk else pool
    return normalized([part.to_tensors(device) for part in (pool, trusted, test)])


def _split_bytes(settings: SplitSettings, rows: SplitRows, device: str) -> list[Pixels]:
    """Returns the splits as views of bytes on the device, which all seeds share."""
    train, test = read_dataset(settings.dataset, settings.image_size)
    whole, tested = bytes_on(settings.dataset, settings.image_size, device)
    mean, deviation = (part.to(device) for part in scale_of(train.images, rows.pool))

    def pixels(source: Tensor, own: np.ndarray, labels: np.ndarray) -> Pixels:
        return Pixels(source, torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64)), mean, deviation)

    return [
        pixels(whole, rows.pool, train.labels[rows.pool]),
        pixels(tested if settings.validation_is_test else whole, rows.trusted, rows.trusted_labels),
        pixels(tested, np.arange(len(test)), test.labels),
    ]


@lru_cache(maxsize=2)
def bytes_on(name: str, image_size: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns the images of the training and test set on the device; on a CPU they are not copied."""
    train, test = (torch.from_numpy(part.images).to(device) for part in read_dataset(name, image_size))
    return train, test


def _split_files(train: ImageFiles, source: ImageFiles, test: ImageFiles, rows: SplitRows) -> list[ImageFiles]:
    """Returns the splits as image files; a validation set equal to the test set is the same object, described once."""
    trusted = replace(source.only(rows.trusted.tolist()), labels=tuple(rows.trusted_labels.tolist()))
    return [train.only(rows.pool.tolist()), test if trusted == test else trusted, test]


def splits_of(experiment: Experiment, cell: Cell, device: str) -> Splits[Any]:
    """Returns the splits of a cell of the experiment."""
    return make_splits(split_settings(experiment, cell.seed, cell.imbalance, cell.validation_size), device)
