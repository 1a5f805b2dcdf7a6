"""Log training runs to TensorBoard and MLflow, if they are installed."""

import json
import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def log_training(folder: Path, training: dict[str, Any]) -> list[str]:
    """Logs a training run, a row of `workspace.round_history.latest_training`, and returns the loggers used."""
    numbers = _numbers(training)
    used = [name for name in LOGGERS if find_spec(name) is not None]
    for name in used:
        LOGGERS[name](folder, numbers, int(training.get("labels_spent", 0)))
    return used


def _numbers(training: dict[str, Any]) -> dict[str, float]:
    recall = training.get("recall", [])
    recall = json.loads(recall) if isinstance(recall, str) else recall  # as stored in the database
    numbers = {"accuracy": training.get("accuracy"), "round": training.get("round")}
    numbers |= {f"recall/{number}": value for number, value in enumerate(recall)}
    return {name: float(value) for name, value in numbers.items() if value is not None and math.isfinite(value)}


def _tensorboard(folder: Path, numbers: dict[str, float], step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportMissingImports]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportMissingImports]
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # pyright: ignore[reportMissingImports]

    writer = EventFileWriter(str(folder / "tensorboard"))
    values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
    writer.add_event(Event(step=step, summary=Summary(value=values)))
    writer.close()


def _mlflow(folder: Path, numbers: dict[str, float], step: int) -> None:
    """Logs to the server in MLFLOW_TRACKING_URI or else to a file in the folder."""
    import mlflow  # pyright: ignore[reportMissingImports]

    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    name = f"rarefish {folder.resolve().name}"
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    runs = client.search_runs([experiment], max_results=1)
    run = runs[0].info.run_id if runs else client.create_run(experiment, run_name=name).info.run_id
    for key, value in numbers.items():
        client.log_metric(run, key, value, step=step)


LOGGERS: dict[str, Callable[[Path, dict[str, float], int], None]] = {"tensorboard": _tensorboard, "mlflow": _mlflow}
