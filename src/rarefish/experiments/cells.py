"""A cell as a task for the loop, and a finished round as a record."""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarefish.acquisitions import ACQUISITIONS, find_acquisition
from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Situation
from rarefish.active_learning.oracles import known_labels
from rarefish.active_learning.records import Record
from rarefish.active_learning.rounds import Round, begin, jobs_of, rebuild
from rarefish.active_learning.task import State, Task
from rarefish.data.reader import labels_of, lies_in_memory
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.datasets import read_dataset, splits_of
from rarefish.experiments.initial_models import load_starts, num_workers
from rarefish.experiments.run_folder import Store
from rarefish.experiments.settings import Cell, Experiment
from rarefish.models.layers import find_layers
from rarefish.models.networks import build_model
from rarefish.training.jobs import FitAll, fit_each
from rarefish.training.loop import Training

STREAMED = 256
"""Images looked at together where they are read from files: of 224 × 224 pixels, 8,000 would be 5 GB."""
MOST_CLASSES = 200
"""With more, no confusion matrix is kept."""


def check_experiment(experiment: Experiment) -> None:
    """Complains about names and settings that no cell could work with, before any work."""
    read_dataset(experiment.dataset, experiment.image_size)
    splits = splits_of(experiment, next(experiment.cells()), "cpu")
    model = build_model(experiment.model, splits.num_classes, splits.channels, torch.Generator())
    for name in ("training", "pretraining"):
        _bind(name, Training, getattr(experiment, name))
    for method in experiment.methods:
        find_acquisition(method.acquisition)
        _bind(f"method {method.name!r}", ACQUISITIONS[method.acquisition], method.settings, Situation, 1, None)
        if experiment.circumstances.junk and "true" in (method.settings.get("labels"), method.acquisition[-4:]):
            raise ArgumentError(f"Method {method.name!r} needs the true class of every image; junk has none.")
        if "layers" in method.settings:
            find_layers(model, method.settings["layers"])


def _bind(what: str, function: Any, settings: dict[str, Any], *arguments: Any) -> None:
    try:
        inspect.signature(function).bind(*arguments, **settings)
    except TypeError as error:
        raise ArgumentError(f"The settings of {what} do not fit: {error}.") from None


def task_of(experiment: Experiment, cell: Cell, store: Store, device: str, executor: Executor | None = None) -> Task:
    """All that the loop needs for a cell."""
    splits = splits_of(experiment, cell, device)
    is_streamed = not lies_in_memory(splits.pool)
    return Task(
        pool=splits.pool,
        validation=splits.validation,
        test=splits.test,
        starts=load_starts(experiment, cell, store, splits, device),
        acquire=find_acquisition(cell.method.acquisition, **cell.method.settings),
        oracle=known_labels(_labels(splits.pool).tolist()),
        budget=experiment.budget,
        num_classes=splits.num_classes,
        name=cell.method.name,
        training=Training(**experiment.training),
        warm=cell.restart == "warm",
        seed=cell.seed,
        batch_size=STREAMED if is_streamed else 1000 if device == "cpu" else 8000,
        workers=num_workers(device) if is_streamed else 0,
        learns_validation=experiment.circumstances.train_on_validation,
        peek=experiment.best_epoch,
        executor=executor or SingleProcess(),
        round_files=store.under_way(cell) if is_streamed else None,
    )


def load_states(tasks: Sequence[Task], cells: Sequence[Cell], store: Store, fit_all: FitAll = fit_each) -> list[State]:
    """Where the cells' finished rounds left off; before the first one, their starts.

    Where only the records of cold rounds are there, the last round's training is done again, for all cells at once.
    """
    states, jobs = [], []
    for task, cell in zip(tasks, cells, strict=True):
        records = store.records(cell)
        if not records or store.has_state(cell, len(records)):
            states.append(_load_state(task, cell, store, len(records)))
            continue
        if task.warm:
            raise DataError(
                f"The run has {len(records)} rounds of {cell.key} but not their state, states/{cell.key}-r"
                f"{len(records):02}.pt. A warm run goes on from its weights: copy that file as well."
            )
        states.append(rebuild(task, [record.indices for record in records]))
        jobs += jobs_of(replace(task, peek=False), states[-1], [])
    fit_all(jobs)
    return states


def _load_state(task: Task, cell: Cell, store: Store, number: int) -> State:
    if number == 0:
        return begin(task)
    kept = store.state(cell, number)
    models = [copy.deepcopy(start) for start in task.starts]
    for model, weights in zip(models, kept["models"], strict=True):
        model.load_state_dict(weights)
        model.eval()
    return State(number, tuple(models), *(tuple(kept[name]) for name in ("labeled", "labels", "refused")))


def keep_round(experiment: Experiment, cell: Cell, task: Task, finished: Round, store: Store) -> None:
    """Writes a finished round to the run."""
    state = finished.state
    kept: dict[str, Any] = {
        "models": [model.state_dict() for model in state.models],
        "labeled": list(state.labeled),
        "labels": list(state.labels),
        "refused": list(state.refused),
    }
    wants_snapshot = finished.number in experiment.snapshot_rounds and cell.seed == 0
    store.finish(
        cell, to_record(experiment, cell, task, finished), kept, _snapshot(task, finished) if wants_snapshot else None
    )


def to_record(experiment: Experiment, cell: Cell, task: Task, finished: Round) -> Record:
    """What is kept of a round in numbers."""
    settings, why, score = cell.method.settings, finished.choice.why, finished.score
    truth = _labels(task.test)
    num_classes = task.num_classes
    confusion = (truth * num_classes + score.prediction).bincount(minlength=num_classes**2).reshape(num_classes, -1)
    # A thousand classes would be a million numbers a round, which no page shows.
    confusion = confusion if num_classes <= MOST_CLASSES else confusion[:0]
    answers = torch.tensor([-1 if label is None else label for label in finished.answers])
    rare = torch.tensor(experiment.rare)
    kernel = {"features": "features", "fisher": "fisher", "fisher_true": "fisher"}.get(cell.method.acquisition, "")
    estimator = {"fisher": "posterior", "fisher_true": "true"}.get(cell.method.acquisition, "")
    pseudo_accuracy = rare_precision = None
    if why is not None:
        pseudo_accuracy = float((why.pseudo_labels == answers).float().mean())
        for_rare = torch.isin(_labels(task.validation)[why.centers], rare)
        rare_precision = float(torch.isin(answers[for_rare], rare).float().mean()) if for_rare.any() else None
    return Record(
        method=cell.method.name,
        seed=cell.seed,
        round=finished.number,
        labels_spent=finished.labels_spent,
        accuracy=score.accuracy,
        rare_recall=float(score.recall[rare].mean()),
        recall=tuple(score.recall.tolist()),
        bought=tuple(label for label in finished.answers if label is not None),
        select_s=finished.select_s,
        train_s=finished.train_s,
        kernel=settings.get("kernel", kernel),
        labels=str(settings.get("labels", estimator)),
        layers="+".join(why.layers) if why else "",
        validation_size=cell.validation_size,
        imbalance=cell.imbalance,
        start=cell.start,
        restart=cell.restart,
        indices=tuple(finished.choice.indices),
        passes=finished.choice.passes,
        best_accuracy=finished.best_accuracy,
        pseudo_accuracy=pseudo_accuracy,
        rare_precision=rare_precision,
        validation_recall=tuple(finished.validation.recall.tolist()) if finished.validation else (),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def _snapshot(task: Task, finished: Round) -> dict[str, np.ndarray]:
    """Features below the classifier, truth and answers of the first 2,000 test images."""
    count = min(2000, len(task.test))
    here = Situation(
        finished.state.models, task.test, task.validation, (), batch_size=task.reader.batch_size, workers=task.workers
    )
    features, logits = last_features(here, list(range(count)))
    return {
        "features": features.float().cpu().numpy(),
        "truth": _labels(task.test)[:count].numpy(),
        "answers": logits.argmax(dim=1).cpu().numpy(),
    }


def _labels(data: Any) -> Tensor:
    labels = labels_of(data)
    assert labels is not None, "data sets of experiments have a list of labels"
    return labels
