"""Pools, validation and test sets as cells get them; on the real files where they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rarefish.data.splits import Splits
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.datasets import FOLDER_VARIABLE, choose_rows, data_folder, data_key, read_dataset, splits_of
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.settings import Circumstances
from tests.experiments.small import counts, small

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"


def test_the_same_split_for_all_methods_and_another_for_each_seed() -> None:
    experiment = small()
    cells = list(experiment.cells())
    first, second, other = (splits_of(experiment, cell, "cpu") for cell in (cells[0], cells[1], cells[3]))
    assert first is second and cells[3].seed == 1
    assert not first.validation.tensors[0].equal(other.validation.tensors[0])
    pool, validation, test = counts(experiment)
    assert pool[:5] == [1230] * 5 and sum(pool[5:]) == 1230 * 5 // 60 and min(pool[5:]) > 0
    assert validation == [20] * 10 and test == [200] * 10


def test_images_of_the_pool_are_normalized() -> None:
    images = splits_of(small(), next(small().cells()), "cpu").pool.tensors[0]
    assert abs(float(images.mean())) < 1e-4 and float(images.std()) == pytest.approx(1, abs=1e-3)


def test_one_other_label_or_image_tells_data_sets_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "tiny_imagenet_100").mkdir()
    images, labels = np.zeros((20, 64, 64, 3), np.uint8), np.arange(20) % 2
    one_pixel, one_label = images.copy(), labels.copy()
    one_pixel[3, 5, 5] = 1
    one_label[3] = 0

    def key(train_x: np.ndarray, train_y: np.ndarray) -> str:
        read_dataset.cache_clear()
        file = tmp_path / "tiny_imagenet_100" / "tiny_imagenet_100.npz"
        np.savez(file, train_x=train_x, train_y=train_y, test_x=images, test_y=labels)
        return data_key(replace(small(), dataset="tiny_imagenet_100"))

    kept = [key(images, labels), key(one_pixel, labels), key(images, one_label), key(images, labels)]
    assert len(set(kept)) == 3 and kept[0] == kept[3]
    read_dataset.cache_clear()


def test_files_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match=f"no data folder 'imagenet'.* Set {FOLDER_VARIABLE}"):
        data_folder("imagenet")
    (tmp_path / "mnist").mkdir()
    assert data_folder("mnist") == tmp_path / "mnist"
    with pytest.raises(ArgumentError, match="no dataset 'mnits'. Did you mean mnist"):
        read_dataset("mnits")


@pytest.mark.skipif(not (SHARED / "data/mnist").exists(), reason="MNIST's files are not beside the checkout")
def test_mnist_as_the_paper_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(SHARED / "data"))
    read_dataset.cache_clear()
    pool, validation, test = counts(load_recipe(f"{ROOT / 'recipes/mnist.py'}:imbalanced"))
    assert validation == [1000] * 10 and sum(test) == 10_000
    assert 25_000 < sum(pool[:5]) < 26_000 and sum(pool[5:]) == sum(pool[:5]) // 100


def test_rows_are_chosen_by_labels_alone() -> None:
    labels, test_labels = np.arange(2000) % 10, np.arange(300) % 10
    cell = replace(next(small().cells()), imbalance=50, validation_size=100)
    pool, trusted, trusted_labels = choose_rows(labels, test_labels, 10, small(), cell)
    assert (labels[trusted] == trusted_labels).all() and not set(pool) & set(trusted)
    assert np.bincount(labels[trusted]).tolist() == [10] * 10
    per_class = np.bincount(labels[pool], minlength=10)
    assert per_class[:5].tolist() == [180] * 5 and per_class[5:].sum() == 900 // 50
    on_test = replace(small().only(("random",)), validation_is_test=True, holdout=0)
    pool, trusted, trusted_labels = choose_rows(labels, test_labels, 10, on_test, cell)
    assert len(set(pool)) == len(pool) == 1020 and np.bincount(labels[pool])[0] == 200
    assert np.array_equal(trusted_labels, test_labels[trusted])


def test_a_smaller_validation_set_leaves_the_pool_alone() -> None:
    large, little = small(), replace(small(), validation_sizes=(50,))
    assert counts(large)[0] == counts(little)[0] and counts(little)[1] == [5] * 10


def test_circumstances_that_a_skeptic_asks_for() -> None:
    plain = splits_of(small(), next(small().cells()), "cpu")

    def under(**doubts: Any) -> Splits:
        experiment = replace(small(), circumstances=Circumstances(**doubts))
        return splits_of(experiment, next(experiment.cells()), "cpu")

    noisy = under(validation_noise=0.2).validation.tensors
    assert int((noisy[1] != plain.validation.tensors[1]).sum()) == 40
    assert torch.equal(noisy[0], plain.validation.tensors[0])
    biased = under(validation_imbalance=10).validation.tensors[1].bincount(minlength=10)
    assert biased[:5].tolist() == [20] * 5 and int(biased[5:].sum()) == 10
    tail = under(long_tail=True).pool.tensors[1].bincount(minlength=10).tolist()
    assert tail == sorted(tail, reverse=True) and tail[-1] == max(1, round(tail[0] / 60))
    junk = under(junk=50).pool.tensors[1]
    assert junk[-50:].tolist() == [-1] * 50 and torch.equal(junk[:-50], plain.pool.tensors[1])
