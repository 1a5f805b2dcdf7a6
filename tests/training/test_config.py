"""Settings that cannot work are refused; the earliest best epoch counts; the learning rate is as said."""

import math
from typing import Any

import pytest

from rarefish.errors import ArgumentError
from rarefish.training.config import Course, Epoch, TrainingResult


def test_the_earliest_best_epoch_is_kept() -> None:
    """Balanced accuracy decides: the plain one would have it otherwise."""
    history = (
        Epoch(1, 1.0, 0.90, (1.0, 0.2, math.nan)),
        Epoch(2, 1.0, 0.70, (0.7, 0.7, math.nan)),
        Epoch(3, 1.0, 0.80, (0.8, 0.6, math.nan)),
    )
    fitted = TrainingResult(history)
    assert fitted.best_epoch == 2 and fitted.accuracy == 0.7 and fitted.best.balanced_accuracy == pytest.approx(0.7)
    assert fitted.is_over(Course(epochs=9, patience=1)) and not fitted.is_over(Course(epochs=9, patience=2))
    assert fitted.is_over(Course(epochs=3)) and not fitted.is_over(Course(epochs=9))


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [Course(lr=2.0, warmup=0.2).lr_at(step, 10) for step in range(10)]
    assert rates[:3] == [1.0, 2.0, 2.0] and rates == [*rates[:2], *sorted(rates[2:], reverse=True)]
    assert 0 < rates[-1] < 0.1 and Course(lr=2.0, warmup=0.0).lr_at(0, 1) == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs and batch_size >= 1"),
        ({"optimizer": "adam"}, "optimizer must be adamw or sgd, not 'adam'"),
        ({"precision": "half"}, "precision must be auto or float32 or bfloat16"),
        ({"warmup": 1.0}, "fractions, at least 0 and below 1"),
        ({"patience": 0}, "patience must be at least 1, or None"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Course(**settings)
