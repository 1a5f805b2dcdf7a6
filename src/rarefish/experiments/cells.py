"""Turn a cell into a task for the active learning loop, and a finished round into a record."""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Situation
from rarefish.acquisitions.registry import ACQUISITIONS, find_acquisition
from rarefish.active_learning.oracles import known_labels
from rarefish.active_learning.records import Record
from rarefish.active_learning.rounds import Round, Task, jobs_of, rebuild
from rarefish.data.reader import labels_of, lies_in_memory
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.baselines import choose_nothing, learn_posterior_alone, train_on_trusted
from rarefish.experiments.datasets import splits_of
from rarefish.experiments.initial_models import load_starts, num_workers
from rarefish.experiments.run_folder import RunFolder
from rarefish.experiments.settings import Cell, Experiment
from rarefish.experiments.source_commit import source_commit
from rarefish.models.layer_selection import find_layers
from rarefish.models.networks import build_model
from rarefish.training.config import Training
from rarefish.training.jobs import FitAll, fit_each

STREAMED_BATCH_SIZE = 256
"""Number of images per batch if they are read from files; 8,000 images of 224 × 224 pixels would need 5 GB."""
MAX_CONFUSION_CLASSES = 200
"""With more classes, no confusion matrix is saved."""


def check_experiment(experiment: Experiment) -> None:
    """Raises ArgumentError for names and settings with which a cell could not run, before any work starts."""
    splits = splits_of(experiment, next(experiment.cells()), "cpu")
    model = build_model(experiment.model, splits.num_classes, splits.channels, torch.Generator())
    for name in ("training", "pretraining"):
        _bind(name, Training, getattr(experiment, name))
    for method in (*experiment.methods, *experiment.baselines):
        if method.acquisition == "posterior_alone":
            _bind(f"baseline {method.name!r}", learn_posterior_alone, method.settings, Task)
        elif method.is_baseline:
            _bind(f"baseline {method.name!r}", train_on_trusted, method.settings, [Task], fit_each)
        else:
            find_acquisition(method.acquisition)
            _bind(f"method {method.name!r}", ACQUISITIONS[method.acquisition], method.settings, Situation, 1, None)
        if experiment.circumstances.junk and method.estimator == "true":
            raise ArgumentError(
                f"The method {method.name!r} needs the true class of every image, but junk images have none."
            )
        if "layers" in method.settings:
            find_layers(model, method.settings["layers"])


def _bind(what: str, function: Any, settings: dict[str, Any], *arguments: Any) -> None:
    try:
        inspect.signature(function).bind(*arguments, **settings)
    except TypeError as error:
        raise ArgumentError(f"The settings of {what} are not valid: {error}.") from None


def task_of(
    experiment: Experiment, cell: Cell, run_folder: RunFolder, device: str, executor: Executor | None = None
) -> Task:
    """Returns the task of a cell for the active learning loop."""
    splits = splits_of(experiment, cell, device)
    is_streamed = not lies_in_memory(splits.pool)
    training = Training(**experiment.training)
    start = Situation(
        models=load_starts(experiment, cell, run_folder, splits, device),
        pool=splits.pool,
        validation=splits.validation,
        batch_size=STREAMED_BATCH_SIZE if is_streamed else 1000 if device == "cpu" else 8000,
        ask=known_labels(_labels(splits.pool).tolist()),
        executor=executor or SingleProcess(),
        workers=num_workers(device) if is_streamed else 0,
        precision=training.precision,
    )
    return Task(
        start=start,
        test=splits.test,
        acquire=choose_nothing
        if cell.method.is_baseline
        else find_acquisition(cell.method.acquisition, **cell.method.settings),
        budget=experiment.budget,
        num_classes=splits.num_classes,
        name=cell.method.name,
        training=training,
        warm=cell.restart == "warm",
        seed=cell.seed,
        learns_validation=experiment.circumstances.train_on_validation,
        peek=experiment.best_epoch,
        round_files=run_folder.under_way(cell) if is_streamed else None,
    )


def load_situations(
    tasks: Sequence[Task], cells: Sequence[Cell], run_folder: RunFolder, fit_all: FitAll = fit_each
) -> list[Situation]:
    """Returns the situation of each cell after its last finished round or, if there is none, before its first.

    A cold cell that has records but no saved state repeats its last training run; all such cells are trained together.
    """
    situations, jobs = [], []
    for task, cell in zip(tasks, cells, strict=True):
        records = run_folder.records(cell)
        if not records or run_folder.has_state(cell, len(records)):
            situations.append(_load_situation(task, cell, run_folder, len(records)))
            continue
        if task.warm:
            raise DataError(
                f"The run has {len(records)} rounds of {cell.key}, but not their state, states/{cell.key}-r"
                f"{len(records):02}.pt. A warm run continues from its weights, so copy that file as well."
            )
        situations.append(rebuild(task, [record.indices for record in records]))
        jobs += jobs_of(replace(task, peek=False), situations[-1], [])
    fit_all(jobs)
    return situations


def _load_situation(task: Task, cell: Cell, run_folder: RunFolder, number: int) -> Situation:
    if number == 0:
        return task.start
    saved = run_folder.state(cell, number)
    models = [copy.deepcopy(model) for model in task.start.models]
    for model, weights in zip(models, saved["models"], strict=True):
        model.load_state_dict(weights)
        model.eval()
    labels = {name: tuple(saved[name]) for name in ("labeled", "labels", "refused")}
    return replace(task.start, finished_rounds=number, models=tuple(models), **labels)


def run_baselines(
    experiment: Experiment,
    cells: Sequence[Cell],
    run_folder: RunFolder,
    device: str,
    fit_all: FitAll = fit_each,
    is_writer: bool = True,
) -> None:
    """Measures baselines, training all in one call to `fit_all`; only the process with `is_writer` saves them."""
    tasks = [task_of(experiment, cell, run_folder, device) for cell in cells]
    is_trained = [cell.method.acquisition == "trusted_only" for cell in cells]
    trained = iter(train_on_trusted([task for task, is_own in zip(tasks, is_trained, strict=True) if is_own], fit_all))
    for cell, task, is_own in zip(cells, tasks, is_trained, strict=True):
        if is_own:
            finished = next(trained)
        elif is_writer:
            finished = learn_posterior_alone(task, **cell.method.settings)
        else:
            continue
        if is_writer:
            run_folder.finish(cell, to_record(experiment, cell, task, finished))


def keep_round(experiment: Experiment, cell: Cell, task: Task, finished: Round, run_folder: RunFolder) -> None:
    """Writes a finished round to the folder of the run."""
    situation = finished.situation
    saved: dict[str, Any] = {
        "models": [model.state_dict() for model in situation.models],
        "labeled": list(situation.labeled),
        "labels": list(situation.labels),
        "refused": list(situation.refused),
    }
    wants_snapshot = finished.number in experiment.snapshot_rounds and cell.seed == 0
    run_folder.finish(
        cell, to_record(experiment, cell, task, finished), saved, _snapshot(task, finished) if wants_snapshot else None
    )


def to_record(experiment: Experiment, cell: Cell, task: Task, finished: Round) -> Record:
    """Returns the record of a finished round."""
    settings, diagnosis, score = cell.method.settings, finished.choice.why, finished.score
    true_labels = _labels(task.test)
    num_classes = task.num_classes
    confusion = (
        (true_labels * num_classes + score.prediction).bincount(minlength=num_classes**2).reshape(num_classes, -1)
    )
    # A thousand classes would need a million numbers per round, and no report shows them.
    confusion = confusion if num_classes <= MAX_CONFUSION_CLASSES else confusion[:0]
    answers = torch.tensor([-1 if label is None else label for label in finished.answers])
    rare = torch.tensor(experiment.rare)
    kernel = {"features": "features", "fisher": "fisher", "fisher_true": "fisher"}.get(cell.method.acquisition, "")
    pseudo_accuracy = rare_precision = None
    if diagnosis is not None:
        pseudo_accuracy = float((diagnosis.pseudo_labels == answers).float().mean())
        has_rare_center = torch.isin(_labels(task.start.validation)[diagnosis.centers], rare)
        rare_precision = (
            float(torch.isin(answers[has_rare_center], rare).float().mean()) if has_rare_center.any() else None
        )
    return Record(
        method=cell.method.name,
        seed=cell.seed,
        round=finished.number,
        labels_spent=finished.labels_spent,
        accuracy=score.accuracy,
        rare_recall=float(score.recall[rare].mean()),
        recall=tuple(score.recall.tolist()),
        new_labels=tuple(label for label in finished.answers if label is not None),
        select_s=finished.select_s,
        train_s=finished.train_s,
        kernel=settings.get("kernel", kernel),
        labels=cell.method.estimator,
        layers="+".join(diagnosis.layers) if diagnosis else "",
        validation_size=cell.validation_size,
        imbalance=cell.imbalance,
        start=cell.start,
        restart=cell.restart,
        indices=tuple(finished.choice.indices),
        centers=tuple(diagnosis.centers.tolist()) if diagnosis else (),
        passes=finished.choice.passes,
        best_accuracy=finished.best_accuracy,
        pseudo_accuracy=pseudo_accuracy,
        rare_precision=rare_precision,
        rare_labeled=sum(label in experiment.rare for label in finished.answers),
        rare_labeled_so_far=sum(label in experiment.rare for label in finished.situation.labels),
        commit=source_commit(),
        validation_recall=tuple(finished.validation.recall.tolist()) if finished.validation else (),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def _snapshot(task: Task, finished: Round) -> dict[str, np.ndarray]:
    """Returns the last features, true labels and predictions of the first 2,000 test images."""
    count = min(2000, len(task.test))
    on_test = Situation(
        finished.situation.models,
        task.test,
        task.start.validation,
        batch_size=task.reader.batch_size,
        workers=task.reader.num_workers,
    )
    features, logits = last_features(on_test, list(range(count)))
    return {
        "features": features.float().cpu().numpy(),
        "truth": _labels(task.test)[:count].numpy(),
        "answers": logits.argmax(dim=1).cpu().numpy(),
    }


def _labels(data: Any) -> Tensor:
    labels = labels_of(data)
    assert labels is not None, "the datasets of experiments have a list of labels"
    return labels
