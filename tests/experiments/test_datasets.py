"""Pools, validation and test sets as cells get them; on the real files where they are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.datasets import FOLDER_VARIABLE, data_folder, data_key, read_dataset, splits_of
from rarefish.experiments.recipes import load_recipe
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
    with pytest.raises(DataError, match=f"no folder 'imagenet'.* Set {FOLDER_VARIABLE}"):
        data_folder("imagenet")
    (tmp_path / "mnist").mkdir()
    assert data_folder("mnist") == tmp_path / "mnist"
    with pytest.raises(ArgumentError, match="no data set 'mnits'. Did you mean mnist"):
        read_dataset("mnits")


@pytest.mark.skipif(not (SHARED / "data/mnist").exists(), reason="MNIST's files are not beside the checkout")
def test_mnist_as_the_paper_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(SHARED / "data"))
    read_dataset.cache_clear()
    pool, validation, test = counts(load_recipe(f"{ROOT / 'recipes/mnist.py'}:imbalanced"))
    assert validation == [1000] * 10 and sum(test) == 10_000
    assert 25_000 < sum(pool[:5]) < 26_000 and sum(pool[5:]) == sum(pool[:5]) // 100
