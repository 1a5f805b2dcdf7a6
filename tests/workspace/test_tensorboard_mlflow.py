"""Trainings logged to TensorBoard, MLflow or another installed tool."""

from pathlib import Path
from typing import Any

import pytest

from rarefish.workspace.tensorboard_mlflow import LOGGERS, log_training


def test_a_training_is_logged_where_something_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setitem(LOGGERS, "json", lambda *given: seen.append(given))
    training = {"round": 2, "labels_spent": 40, "accuracy": 0.5, "recall": "[0.25, null, NaN]", "counts": "[1, 0]"}
    assert "json" in log_training(tmp_path, training)
    assert seen == [(tmp_path, {"accuracy": 0.5, "round": 2.0, "recall/0": 0.25}, 40)]
