"""Biased pools by seed, counted class by class."""

from typing import Any

import numpy as np
import pytest

from rarefish.data.imbalance import (
    check_classes,
    cut_each,
    long_tail,
    mistaken,
    step_imbalance,
    stratified,
    subsample,
)
from rarefish.errors import ArgumentError, DataError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))


def counts(kept: np.ndarray) -> list[int]:
    assert len(set(kept.tolist())) == len(kept)
    return np.bincount(LABELS[kept], minlength=10).tolist()


def test_step_imbalance_keeps_a_share_of_the_rare_classes_together() -> None:
    kept = counts(step_imbalance(LABELS, range(5, 10), 10, seed=1))
    assert kept[:5] == [100] * 5 and sum(kept[5:]) == 50 and min(kept[5:]) > 0
    assert counts(step_imbalance(LABELS, range(5, 10), 1, seed=1)) == [100] * 10


def test_long_tail_falls_exponentially() -> None:
    kept = counts(long_tail(LABELS, 100, seed=0))
    assert kept[0] == 100 and kept[-1] == 1
    assert kept == [round(100 * 100 ** (-i / 9)) for i in range(10)]


def test_subsample_by_table() -> None:
    assert counts(subsample(LABELS, {3: 7, 9: 1}, seed=0)) == [100, 100, 100, 7, *[100] * 5, 1]


def test_stratified_takes_all_classes_evenly() -> None:
    assert counts(stratified(LABELS, 30, seed=0)) == [3] * 10
    assert counts(stratified(LABELS, 33, seed=0)) == [4, 4, 4, *[3] * 7]


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: step_imbalance(LABELS, range(5, 10), 10, seed),
        lambda seed: long_tail(LABELS, 10, seed),
        lambda seed: subsample(LABELS, {1: 5}, seed),
        lambda seed: stratified(LABELS, 30, seed),
    ],
)
def test_the_seed_decides(draw: Any) -> None:
    assert np.array_equal(draw(3), draw(3)) and not np.array_equal(draw(3), draw(4))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: step_imbalance(LABELS, range(5, 10), 500, 0), "leaves no images of class"),
        (lambda: step_imbalance(LABELS, range(5, 10), 0.5, 0), "1 or more, not 0.5"),
        (lambda: step_imbalance(LABELS, [9], 1.5, 0), "needs 600 rare images, but there are 100"),
        (lambda: long_tail(LABELS, 1000, 0), "leaves no images of class 7, 8, 9"),
        (lambda: subsample(LABELS, {2: 101}, 0), "Cannot keep 101 images of class 2: there are only 100"),
        (lambda: stratified(LABELS, 9, 0), "9 images leaves out some of the 10 classes"),
        (lambda: stratified(LABELS, 1001, 0), "need 101 of class 0, but there are 100"),
    ],
)
def test_what_cannot_be_done_is_said(draw: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        draw()


def test_a_class_missing_from_validation_is_named() -> None:
    with pytest.raises(DataError, match="validation set has no images of class 2, 3"):
        check_classes(np.array([0, 1, 4]), 5, "validation set")


def test_each_rare_class_keeps_its_own_share() -> None:
    labels = np.repeat(np.arange(4), [100, 250, 90, 100])
    kept = labels[cut_each(labels, (1, 2), 10, seed=3)]
    assert np.bincount(kept).tolist() == [100, 25, 9, 100]
    assert not np.array_equal(cut_each(labels, (1, 2), 10, seed=3), cut_each(labels, (1, 2), 10, seed=4))
    with pytest.raises(ArgumentError, match="1 or more"):
        cut_each(labels, (1,), 0.5, seed=0)
    with pytest.raises(ArgumentError, match="leaves no images of class 2"):
        cut_each(labels, (2,), 100, seed=0)


def test_a_mistaken_label_names_another_class() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    changed = mistaken(labels, 0.4, 3, seed=5)
    assert (changed != labels).sum() == 40 and set(changed) == {0, 1, 2}
    assert set(changed[(changed != labels) & (labels == 0)]) == {1, 2}
    assert np.array_equal(mistaken(labels, 0, 3, seed=5), labels)
