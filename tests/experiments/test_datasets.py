"""Pools, validation and test sets as cells get them; on the real files where they are."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rarefish.data.splits import Splits
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.datasets import FOLDER_VARIABLE, data_folder, data_key, read_dataset, splits_of
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.settings import Circumstances, Experiment
from rarefish.report.run_data import read_paper
from tests.experiments.small import small
from tests.report.made import rounds

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"


def counts(experiment: Experiment) -> list[list[int]]:
    splits = splits_of(experiment, next(experiment.cells()), "cpu")
    return [part.tensors[1].bincount(minlength=10).tolist() for part in (splits.pool, splits.validation, splits.test)]


def test_the_same_split_for_all_methods_and_another_for_each_seed() -> None:
    experiment = small()
    cells = list(experiment.cells())
    first, second, other = (splits_of(experiment, cell, "cpu") for cell in (cells[0], cells[1], cells[3]))
    assert first is second and cells[3].seed == 1
    assert not first.validation.tensors[0].equal(other.validation.tensors[0])
    pool, validation, test = counts(experiment)
    assert pool[:5] == [1230] * 5 and sum(pool[5:]) == 1230 * 5 // 60 and min(pool[5:]) > 0
    assert validation == [20] * 10 and test == [200] * 10


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


@pytest.mark.parametrize(
    ("recipe", "count", "known"),
    [
        ("mnist.py:imbalanced", 6, ("fisher density L80", 0.8381)),
        ("svhn.py:svhn_paper", 7, ("varR K64", 0.6472)),
        ("imagenet.py:imagenet_paper", 6, ("fisher prediction L768", 0.3285)),
    ],
)
def test_the_papers_recipes_name_its_curves(recipe: str, count: int, known: tuple[str, float]) -> None:
    experiment = load_recipe(f"{ROOT / 'recipes' / recipe}")
    records = [r for method in experiment.methods for r in rounds(method.name, 0, (0.1,))]
    pairs = list(zip(records, records, strict=True))
    drawn = {c.method: c for c in read_paper(ROOT / "docs/results/paper_curves.csv", experiment.dataset, pairs)}
    assert len(drawn) == count and drawn[known[0]].mean[1] == pytest.approx(known[1])


@pytest.mark.skipif(not (SHARED / "reference").exists(), reason="the paper's curves are not beside the checkout")
def test_the_papers_curves_are_those_that_were_read_off() -> None:
    """A few points stand in two figures of the paper; the first counts."""
    own, read = (read_points(path / "paper_curves.csv") for path in (ROOT / "docs/results", SHARED / "reference"))
    assert own == read and len(own) == 620


def read_points(path: Path) -> dict[tuple[str, ...], tuple[str, str]]:
    points: dict[tuple[str, ...], tuple[str, str]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            place = tuple(row[name] for name in ("dataset", "imbalance", "method", "param", "round"))
            points.setdefault(place, (row["accuracy"], row["std"]))
    return points
