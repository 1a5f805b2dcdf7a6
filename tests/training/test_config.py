"""Settings that cannot work are refused; the earliest best epoch counts; the learning rate is as said."""

import math
from dataclasses import replace
from typing import Any

import pytest

from rarefish.errors import ArgumentError
from rarefish.training.config import Epoch, Training, TrainingResult


def test_the_earliest_best_epoch_is_kept() -> None:
    """Balanced accuracy decides: the plain one would have it otherwise."""
    history = (
        Epoch(1, 1.0, 0.90, (1.0, 0.2, math.nan)),
        Epoch(2, 1.0, 0.70, (0.7, 0.7, math.nan)),
        Epoch(3, 1.0, 0.80, (0.8, 0.6, math.nan)),
    )
    fitted = TrainingResult(history)
    assert fitted.best_epoch == 2 and fitted.accuracy == 0.7 and fitted.best.balanced_accuracy == pytest.approx(0.7)
    assert fitted.is_over(Training(epochs=9, patience=1)) and not fitted.is_over(Training(epochs=9, patience=2))
    assert fitted.is_over(Training(epochs=3)) and not fitted.is_over(Training(epochs=9))


def test_the_learning_rate_rises_and_falls() -> None:
    training = Training(epochs=5, lr=2.0, cosine=True, lr_per_step=True, warmup=0.2)
    rates = [training.lr_at(step, 10) for step in range(10)]
    assert rates[:3] == [1.0, 2.0, 2.0] and rates == [*rates[:2], *sorted(rates[2:], reverse=True)]
    assert 0 < rates[-1] < 0.1 and replace(training, warmup=0.0).lr_at(0, 1) == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs >= 0"),
        ({"batch_size": 0}, "batch_size and step_size >= 1"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs momentum > 0"),
        ({"shift": 1, "zoom": 0.1}, "Set either shift or zoom"),
        ({"optimizer": "adam"}, "optimizer must be adamw or sgd, not 'adam'"),
        ({"precision": "half"}, "precision must be auto or float32 or bfloat16"),
        ({"warmup": 1.0}, "fractions of at least 0 and less than 1"),
        ({"patience": 0}, "patience must be at least 1, or None"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Training(**settings)


def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match="lr > 0"):
        Training(lr=0.0)


def rates(**settings: object) -> list[float]:
    training = Training(epochs=10, lr=1.0, **settings)  # pyright: ignore[reportArgumentType]
    return [training.lr_at(epoch, 10) for epoch in range(10)]


def test_a_cosine_rises_once_and_falls_to_nothing() -> None:
    values = rates(cosine=True)
    assert values[0] == pytest.approx(0.5)
    assert values[1:] == sorted(values[1:], reverse=True)
    assert values[1] > 0.99 and 0 < values[-1] < 0.01


def test_the_rate_falls_after_given_epochs() -> None:
    assert rates(milestones=(3, 7)) == pytest.approx([1] * 3 + [0.1] * 4 + [0.01] * 3)


@pytest.mark.parametrize("settings", [{"shift": -1}, {"label_smoothing": 1.0}, {"precision": "float8"}])
def test_bad_modern_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        Training(**settings)  # pyright: ignore[reportArgumentType]
