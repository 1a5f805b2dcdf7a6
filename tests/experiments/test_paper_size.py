"""The paper's full-size recipes, on little copies of the original files: complete, together, killed, moved."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rarefish.data.arrays import Pixels
from rarefish.data.image_files import ImageFiles
from rarefish.data.imbalance import step_imbalance, stratified
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments import datasets as data
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.run_folder import RunFolder
from rarefish.experiments.runner import run_experiment
from rarefish.experiments.settings import Circumstances, Experiment, Method
from tests import forked_processes
from tests.experiments.miniature import (
    RECIPES,
    SVHN,
    TRAIN,
    VAL,
    WNIDS,
    imagenet,
    imagenet_in_half,
    imagenet_posterior,
    svhn,
    write_imagenet,
    write_svhn,
)
from tests.experiments.runs import everything
from tests.forked_processes import FORKED_RANKS

ROOT = Path(__file__).parents[2]
PUBLISHED = (50498, 104421, 85325, 69262, 58091, 60372, 47309, 49592, 40403, 39115)
"""Images of each digit in SVHN's train and extra."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_svhn(folder)
    write_imagenet(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The little files in place of the real ones; what was read of others is forgotten."""
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(files))
    kept = (data.read_dataset, data.make_splits, data.bytes_on)
    for cache in kept:
        cache.cache_clear()
    yield
    for cache in kept:
        cache.cache_clear()


def run_all(experiment: Experiment, folder: Path, jobs: int) -> RunFolder:
    """Every method, each round with its records."""
    run_folder = run_experiment(experiment, folder, jobs=jobs)
    for cell in experiment.baseline_cells():
        (record,) = run_folder.records(cell)
        assert record.round == record.labels_spent == 0 and 0 <= record.accuracy <= 1 and not record.validation_recall
    for cell in experiment.cells():
        records = run_folder.records(cell)
        assert [r.labels_spent for r in records] == [4, 8] and len({i for r in records for i in r.indices}) == 8
        assert all(0 <= r.accuracy <= 1 and len(r.recall) == len(r.validation_recall) for r in records)
    assert not list((folder / "epochs").iterdir())
    return run_folder


def test_the_papers_settings() -> None:
    """METHOD's table, line by line."""
    digits, objects = (load_recipe(f"{RECIPES / name}.py:{name}_paper") for name in ("svhn", "imagenet"))
    assert (digits.model, digits.budget, digits.rounds, digits.seeds, digits.holdout) == (
        *("resnet10", 1250, 10, 5),
        604_388 - 500_000,
    )
    assert digits.imbalances == objects.imbalances == (100,) and digits.validation_sizes == (digits.holdout,)
    assert (objects.model, objects.budget, objects.rounds, objects.seeds) == ("resnet18", 64_000, 10, 1)
    assert objects.validation_is_test and objects.image_size == 224 and len(objects.rare) == 500
    assert objects.circumstances == Circumstances(each_cut=True) and objects.training["milestones"] == (30, 50, 57)
    for name in ("svhn", "imagenet"):
        assert load_recipe(f"{RECIPES / name}.py:{name}_paper_balanced").imbalances == (1,)


def test_the_validation_set_of_svhn_can_have_as_many_of_each_digit() -> None:
    assert sum(PUBLISHED) == 604_388
    labels = np.repeat(np.arange(10), PUBLISHED)
    held = stratified(labels, 104_388, seed=0)
    counts = np.bincount(labels[held])
    assert counts.max() - counts.min() == 1
    rest = np.delete(labels, held)
    assert len(rest) == 500_000
    pool = np.bincount(rest[step_imbalance(rest, range(5, 10), 100, seed=0)])
    assert pool[5:].sum() == pool[:5].sum() // 100 and pool[:5].tolist() == np.bincount(rest)[:5].tolist()


@pytest.mark.slow
def test_svhn_with_all_methods(tmp_path: Path) -> None:
    experiment = svhn()
    splits = data.splits_of(experiment, next(experiment.cells()), "cpu")
    each = SVHN["train"] + SVHN["extra"] - 2
    counts = np.bincount(splits.pool.targets)
    assert counts[:5].tolist() == [each] * 5 and counts[5:].sum() == each * 5 // 3
    assert np.bincount(splits.validation.targets).tolist() == [2] * 10
    assert np.bincount(splits.test.targets).tolist() == [SVHN["test"]] * 10
    # One copy of the bytes for all parts and seeds, scaled by the pool.
    other = data.splits_of(experiment, replace(next(experiment.cells()), seed=1), "cpu")
    assert isinstance(splits.pool, Pixels) and splits.pool.bytes.dtype == torch.uint8
    assert len({part.bytes.data_ptr() for part in (splits.pool, splits.validation, other.pool)}) == 1
    images = splits.pool.take(torch.arange(len(splits.pool)))
    torch.testing.assert_close(images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0)
    run_all(experiment, tmp_path / "run", jobs=1)


def test_svhn_without_extra_is_read_from_the_original_files_too() -> None:
    train, test = data.read_dataset("svhn")
    assert len(train) == 10 * SVHN["train"] and len(test) == 10 * SVHN["test"]
    assert sorted(set(train.labels.tolist())) == list(range(10))
    whole, _ = data.read_dataset("svhn-extra")
    assert np.array_equal(whole.images[: len(train)], train.images)


@pytest.mark.slow
def test_imagenet_with_all_methods(tmp_path: Path) -> None:
    experiment = imagenet()
    splits = data.splits_of(experiment, next(experiment.cells()), "cpu")
    counts = np.bincount(splits.pool.targets).tolist()
    assert counts == [TRAIN // 5 if c in experiment.rare else TRAIN for c in range(len(WNIDS))]
    # The paper's validation set is its test set: all of val.
    assert isinstance(splits.pool, ImageFiles) and splits.validation is splits.test
    assert [path.parent.name for path in splits.test.paths] == [wnid for wnid in WNIDS for _ in range(VAL)]
    assert splits.pool[0][0].shape == (3, 32, 32)
    run_folder = run_all(experiment, tmp_path / "run", jobs=1)
    for cell in experiment.cells():
        assert all(r.validation_recall == r.recall for r in run_folder.records(cell))
    balanced = replace(experiment, imbalances=(1,))
    assert np.bincount(data.splits_of(balanced, next(balanced.cells()), "cpu").pool.targets).tolist() == [TRAIN] * 6


@pytest.mark.slow
def test_imagenet_with_the_posterior_and_baselines(tmp_path: Path) -> None:
    """The validation set is held out of the training images, since the posterior learns its labels."""
    names = ("fisher posterior L768", "fisher density L768")
    experiment = imagenet_posterior().only(names)
    splits = data.splits_of(experiment, next(experiment.cells()), "cpu")
    assert not set(splits.validation.paths) & {*splits.test.paths, *splits.pool.paths}
    run_folder = run_all(experiment, tmp_path / "run", jobs=1)
    assert len(list((run_folder.folder / "records").iterdir())) == len(names) + 2


def test_nothing_is_trained_on_the_test_labels() -> None:
    learner = Method(name="ours", acquisition="fisher", settings={"labels": "posterior"})
    arm = Method(name="quotas", acquisition="posterior_quotas")
    trusted = Method(name="trusted", acquisition="trusted_only")
    for changes, name in (
        ({"methods": (learner,)}, "ours"),
        ({"methods": (arm,)}, "quotas"),
        ({"methods": (Method(name="default", acquisition="fisher"),)}, "default"),
        ({"baselines": (trusted,)}, "trusted"),
        ({"circumstances": Circumstances(train_on_validation=True)}, "train_on_validation"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name} would learn from the test labels"):
            imagenet(**changes)


def test_what_cannot_be_is_said_before_the_work(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Set holdout=0, not 5"):
        imagenet(holdout=5)
    with pytest.raises(ArgumentError, match="Junk images can only be made from images in memory"):
        run_experiment(imagenet(circumstances=Circumstances(junk=3)), tmp_path / "run")
    shutil.copytree(files / "imagenet", tmp_path / "imagenet")
    shutil.rmtree(tmp_path / "imagenet" / "val" / WNIDS[2])
    os.environ[data.FOLDER_VARIABLE] = str(tmp_path)  # given back by the fixture
    with pytest.raises(DataError, match=f"have different classes: {WNIDS[2]} are in only one of them"):
        run_experiment(imagenet(), tmp_path / "run")


def command(recipe: str, folder: Path, *before: str) -> list[str]:
    address = f"{Path(__file__).with_name('miniature.py')}:{recipe}"
    start = [str(ROOT / "src/rarefish/__main__.py")] if before else ["-m", "rarefish"]
    words = ["experiment", address, "--device", "cpu", "--together", "--output", str(folder)]
    return [sys.executable, *before, *start, *words]


def start(recipe: str, folder: Path, *before: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return forked_processes.Popen(command(recipe, folder, *before), cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def run(recipe: str, folder: Path, *before: str) -> None:
    process = start(recipe, folder, *before)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said.decode()


TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *FORKED_RANKS)


@pytest.mark.slow
def test_two_processes_train_residual_networks_on_imagenet_in_bfloat16(tmp_path: Path) -> None:
    run("imagenet_in_half", tmp_path / "two", *TWO)
    kept = everything(tmp_path / "two")
    recipe = imagenet_in_half()
    assert sorted({r.method for records in kept.values() for r in records}) == sorted(
        method.name for method in (*recipe.methods, *recipe.baselines)
    )
    for records in kept.values():
        if not records[0].round:
            assert len(records) == 1
            continue
        assert [r.labels_spent for r in records] == [4, 8] and len({i for r in records for i in r.indices}) == 8
    (state,) = (tmp_path / "two" / "states").glob("fisher_posterior*-r02.pt")
    (weights,) = torch.load(state, weights_only=True)["models"]
    assert all(value.isfinite().all() and value.dtype != torch.bfloat16 for value in weights.values())


@pytest.mark.slow
def test_two_processes_choose_from_imagenet_what_one_chooses(tmp_path: Path) -> None:
    run("imagenet_without_norms", tmp_path / "two", *TWO)
    run("imagenet_without_norms", tmp_path / "one")
    alone, together = everything(tmp_path / "one"), everything(tmp_path / "two")
    assert len(alone) == 3 and alone.keys() == together.keys()
    for name, records in alone.items():
        assert [r.indices for r in together[name]] == [r.indices for r in records]


@pytest.mark.slow
def test_a_killed_training_goes_on_elsewhere_and_ends_as_if_left_in_peace(tmp_path: Path) -> None:
    run("imagenet_for_long", tmp_path / "peace")
    for number, waiting in enumerate(("pretrained-*.pt", "*-r01-m0.pt", "*-r02-m0.pt")):
        folder = tmp_path / f"machine{number}"
        process = start("imagenet_for_long", folder)
        deadline = time.monotonic() + 1800
        while not list((folder / "epochs").glob(waiting)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        (left,) = (folder / "epochs").glob(waiting)
        assert 1 <= len(torch.load(left, weights_only=True)["history"]) < 150
        shutil.copytree(folder, tmp_path / f"machine{number + 1}")
    run("imagenet_for_long", tmp_path / "machine3")
    assert everything(tmp_path / "machine3") == everything(tmp_path / "peace")
    assert not list((tmp_path / "machine3" / "epochs").iterdir())
