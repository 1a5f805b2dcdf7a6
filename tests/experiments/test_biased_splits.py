"""The rows of the pool and of the trusted images, chosen by labels alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rarefish.data.splits import Splits
from rarefish.experiments.biased_splits import choose_rows, split_settings
from rarefish.experiments.datasets import splits_of
from rarefish.experiments.settings import Circumstances
from tests.experiments.small import counts, small

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"


def test_rows_are_chosen_by_labels_alone() -> None:
    labels, test_labels = np.arange(2000) % 10, np.arange(300) % 10
    settings = split_settings(small(), seed=0, imbalance=50, validation_size=100)
    rows = choose_rows(labels, test_labels, 10, settings)
    assert (labels[rows.trusted] == rows.trusted_labels).all() and not set(rows.pool) & set(rows.trusted)
    assert np.bincount(labels[rows.trusted]).tolist() == [10] * 10
    per_class = np.bincount(labels[rows.pool], minlength=10)
    assert per_class[:5].tolist() == [180] * 5 and per_class[5:].sum() == 900 // 50
    from_test = choose_rows(labels, test_labels, 10, replace(settings, validation_is_test=True, holdout=0))
    assert len(set(from_test.pool)) == len(from_test.pool) == 1020 and np.bincount(labels[from_test.pool])[0] == 200
    assert np.array_equal(from_test.trusted_labels, test_labels[from_test.trusted])


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
