"""The field test: splits, what the head is trained on, and runs that resume after a kill."""

import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rarefish.acquisitions import ACQUISITIONS, Choice, Situation
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.active_learning.records import Record, read_records
from rarefish.errors import ArgumentError
from rarefish.experiments import frozen_features
from rarefish.experiments.frozen_features import Setting, fit_head, prepare, run_field, score_head
from rarefish.experiments.settings import Method
from rarefish.models.networks import classifier_of
from tests import forked_processes
from tests.experiments.vectors import METHODS, SIZES, TRAINED, WITHHELD, labels_in, load_vectors

ROOT = Path(__file__).parents[2]


def rows_of(folder: Path) -> dict[str, list[Record]]:
    """Returns the records per cell, without the seconds, which differ from run to run."""
    return {
        f"{path.parent.parent.name}/{path.name}": [
            replace(record, select_s=0.0, train_s=0.0, commit="") for record in read_records(path)
        ]
        for path in sorted(folder.glob("*/records/*.jsonl"))
    }


def run(folder: Path, settings: tuple[Setting, ...] = (WITHHELD, TRAINED), jobs: int = 1) -> dict[str, list[Record]]:
    run_field(settings, METHODS, folder, seeds=range(2), rounds=3, jobs=jobs, load=load_vectors)
    return rows_of(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of both settings that was never interrupted."""
    folder = tmp_path_factory.mktemp("field") / "whole"
    run(folder)
    return folder


def test_a_split_is_balanced_for_the_trusted_set_and_cut_for_the_rare_classes() -> None:
    train, test = load_vectors("vectors")
    for setting, seed in ((WITHHELD, 0), (WITHHELD, 1), (replace(WITHHELD, imbalance=1, rare=(1, 4)), 0)):
        split = prepare(train, test, setting, seed).split
        assert split.num_classes == 6 and len(split.rare) == (2 if setting.rare else 3)
        assert np.bincount(labels_in(split.validation)).tolist() == [3] * 6
        expected = [
            round((size - 3) / setting.imbalance) if c in split.rare else size - 3 for c, size in enumerate(SIZES)
        ]
        assert np.bincount(labels_in(split.pool)).tolist() == expected
        rows = {row.tobytes() for part in (split.pool, split.validation) for row in part.values}
        assert len(rows) == len(split.pool) + 18 and rows <= {row.astype(np.float32).tobytes() for row in train.values}
        assert split.pool.values.dtype == np.float32 and np.array_equal(labels_in(split.test), labels_in(test))
    first, second = (prepare(train, test, WITHHELD, seed).split for seed in (0, 1))
    assert first.rare != second.rare and not np.array_equal(first.validation.values, second.validation.values)


def test_the_split_is_that_of_the_first_experiments() -> None:
    """Written out: one generator draws an order of all images, the rare classes, and the order of the pool."""
    train, test = load_vectors("vectors")
    split = prepare(train, test, WITHHELD, 7).split
    labels, generator = torch.tensor(train.labels), torch.Generator().manual_seed(1007)
    order = torch.randperm(len(labels), generator=generator).tolist()
    rare = sorted(torch.randperm(6, generator=generator)[:3].tolist())
    pool: list[int] = []
    trusted: list[int] = []
    for c in range(6):
        own = [row for row in order if labels[row] == c]
        trusted += own[:3]
        pool += own[3 : 3 + round((len(own) - 3) / 5)] if c in rare else own[3:]
    pool = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
    assert list(split.rare) == rare
    assert np.array_equal(split.pool.values, train.values[pool].astype(np.float32))
    assert np.array_equal(split.validation.values, train.values[trusted].astype(np.float32))


@pytest.mark.parametrize("setting", [WITHHELD, TRAINED])
def test_the_head_is_trained_on_bought_labels_and_on_trusted_ones_only_if_they_are_not_withheld(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[torch.Tensor, torch.Tensor]] = []
    fit = frozen_features.fit_linear_head

    def spy(features: np.ndarray, labels: np.ndarray, *arguments: object, **settings: object) -> object:
        fitted.append((torch.tensor(features), torch.tensor(labels)))
        return fit(features, labels, *arguments, **settings)  # pyright: ignore[reportArgumentType]

    field_test = prepare(*load_vectors("vectors"), setting, 0)
    monkeypatch.setattr(frozen_features, "fit_linear_head", spy)
    records = list(field_test.run(METHODS[1], 2))
    pool, trusted = field_test.split.pool, field_test.split.validation
    assert len(fitted) == 2
    for number, (features, labels) in enumerate(fitted, start=1):
        bought = [i for record in records[:number] for i in record.indices]
        parts = [pool.only(bought)] if setting is WITHHELD else [trusted, pool.only(bought)]
        assert np.array_equal(features.numpy(), np.concatenate([part.values for part in parts]))
        assert labels.tolist() == [label for part in parts for label in labels_in(part)]
        assert tuple(labels.tolist()[-8:]) == records[number - 1].new_labels


@pytest.mark.parametrize("setting", [WITHHELD, TRAINED])
def test_the_acquisition_sees_the_head_and_whether_it_was_trained_on_the_trusted_images(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Situation] = []

    def choose_and_tell(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
        seen.append(situation)
        return choose_random(situation, budget, generator)

    monkeypatch.setitem(ACQUISITIONS, "telling", choose_and_tell)
    field_test = prepare(*load_vectors("vectors"), setting, 0)
    records = list(field_test.run(Method(name="telling", acquisition="telling"), 2))
    (first, second), trained = seen, setting is TRAINED
    assert [situation.trained_on_validation for situation in seen] == [trained, trained]
    assert first.is_trained == trained and second.is_trained and second.labels == records[0].new_labels
    assert field_test.trusted_head is not None
    assert torch.equal(classifier_of(first.model)[1].weight, field_test.trusted_head.weight) == trained
    bought = field_test.split.pool.only(records[0].indices)
    head = fit_head([field_test.split.validation, bought] if trained else [bought], 6, 0)
    assert head is not None and torch.equal(classifier_of(second.model)[1].weight, head.weight)
    found = score_head(head, field_test.split.test, 6)
    assert records[0].accuracy == found.accuracy and records[0].recall == pytest.approx(found.recall.tolist(), abs=1e-6)


def test_records_have_the_scores_of_each_round_and_the_baseline_has_round_0(whole: Path) -> None:
    rows = rows_of(whole)
    assert len(rows) == 2 * 2 * 4
    for name, records in rows.items():
        numbers = [0] if "trusted_only" in name else [1, 2, 3]
        assert [record.round for record in records] == numbers
        assert [record.labels_spent for record in records] == [8 * number for number in numbers]
        field_test = prepare(*load_vectors("vectors"), TRAINED, records[0].seed)
        for record in records:
            recall = np.array(record.recall)
            assert record.accuracy == pytest.approx(recall.mean(), abs=1e-5)  # the test set is balanced
            assert record.rare_recall == pytest.approx(recall[list(field_test.split.rare)].mean(), abs=1e-5)
            assert record.rare_labeled == sum(label in field_test.split.rare for label in record.new_labels)
            assert tuple(labels_in(field_test.split.pool)[list(record.indices)]) == record.new_labels
    first = {name: records[0] for name, records in rows.items() if records[0].seed == 0}

    def of(setting: Setting, method: str) -> Record:
        return next(record for name, record in first.items() if name.startswith(f"{setting.name}/{method}-"))

    # Without a head, methods that need one choose at random.
    assert of(WITHHELD, "margin").indices == of(WITHHELD, "random").indices == of(TRAINED, "random").indices
    assert of(TRAINED, "margin").indices != of(TRAINED, "random").indices
    assert of(TRAINED, "random").accuracy != of(WITHHELD, "random").accuracy
    assert of(TRAINED, "trusted_only").recall == of(WITHHELD, "trusted_only").recall


def test_without_labels_of_two_classes_there_is_no_head() -> None:
    _, test = load_vectors("vectors")
    assert fit_head([test.only([0]), test.only([])], 6, 0) is None
    found = score_head(None, test, 6)
    assert found.accuracy == 0 and found.recall.tolist() == [0] * 6


def test_a_run_that_was_interrupted_anywhere_gives_the_same_rows(whole: Path, tmp_path: Path) -> None:
    expected = rows_of(whole)
    folder = tmp_path / "cut"
    shutil.copytree(whole, folder)
    cells = sorted(folder.glob("*/records/*.jsonl"))
    for number, path in enumerate(cells):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: number % 4]) + lines[0][: 40 * (number % 2)])  # some end within a line
    cells[0].unlink()
    assert run(folder) == expected
    assert run(folder) == expected  # nothing is left to do
    assert run(tmp_path / "jobs", jobs=2) == expected


PROGRAM = """
from pathlib import Path
import sys
import torch
torch.set_num_threads(1)
from rarefish.experiments.frozen_features import run_field
from tests.experiments.vectors import METHODS, TRAINED, WITHHELD, load_vectors
if __name__ == "__main__":
    run_field([WITHHELD, TRAINED], METHODS, Path(sys.argv[1]), seeds=range(2), rounds=3, load=load_vectors)
"""


def test_a_killed_run_resumes(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    program = forked_processes.Popen([sys.executable, "-c", PROGRAM, str(folder)], env=environment, cwd=tmp_path)
    while sum(map(len, rows_of(folder).values())) < 5 and program.poll() is None:
        time.sleep(0.01)
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert 5 <= sum(map(len, rows_of(folder).values())) < 40
    assert run(folder) == rows_of(whole)


def test_settings_and_methods_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="There is no 'hidden'"):
        replace(WITHHELD, trusted="hidden")
    with pytest.raises(ArgumentError, match="per_class must be at least 1, not 0"):
        replace(WITHHELD, per_class=0)
    with pytest.raises(ArgumentError, match="There is no acquisition 'badger'. Did you mean badge"):
        run_field([WITHHELD], [Method(name="x", acquisition="badger")], tmp_path, seeds=[0], load=load_vectors)
    assert not any(tmp_path.iterdir())
    run_field([WITHHELD], METHODS[:1], tmp_path, seeds=[0], rounds=1, load=load_vectors)
    with pytest.raises(ArgumentError, match="'budget': 8.* instead of .*'budget': 9"):
        run_field([replace(WITHHELD, budget=9)], METHODS[:1], tmp_path, seeds=[0], rounds=1, load=load_vectors)
