"""Selects a round of images in a workspace, trains a model on its labels, and evaluates it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from warnings import warn

import torch
from torch import nn

from rarefish.data.parquet import open_labeled
from rarefish.data.reader import Reader
from rarefish.distributed import torchrun as distributed
from rarefish.distributed.resume_folder import NAME
from rarefish.errors import ArgumentError, DataError, WorkspaceError, list_some
from rarefish.selection import Selection, select
from rarefish.training.config import Course
from rarefish.training.evaluation import Score, evaluate
from rarefish.training.image_training import fit_files
from rarefish.workspace.answers import settled
from rarefish.workspace.history import (
    Chosen,
    add_round,
    add_training,
    keep_weights,
    labels_key,
    latest_training,
    model_key,
    next_training,
    picked_images,
)
from rarefish.workspace.images import WorkspaceImages, load_into_memory, open_images
from rarefish.workspace.model import first_model, latest_model, save_weights
from rarefish.workspace.predictions import class_counts, class_probabilities, pool_mix, top_classes
from rarefish.workspace.store import Store
from rarefish.workspace.tracking import log_training

STEPS, MOST_EPOCHS = 600, 150
"""With few labels, a training runs for about STEPS optimizer steps, but for no more than MOST_EPOCHS epochs."""


@dataclass(frozen=True)
class Running:
    """Device, batch size, worker processes and progress bars for the commands that run a model."""

    device: str = "auto"
    batch_size: int = 256
    workers: int = 2
    shard: int = 20_000
    progress: bool = True

    def reader(self) -> Reader:
        return Reader(batch_size=self.batch_size, num_workers=self.workers, progress=self.progress)


def choose_round(
    store: Store, budget: int, *, labels: str = "posterior", layers: Sequence[str] | None = None, running: Running
) -> int:
    """Selects images, records them as a new round and returns its number. Under torchrun the first process records.

    Finished shards are kept in the workspace until the end, so that a killed selection continues where it stopped.
    """
    device = _join_processes(running)
    try:
        if distributed.rank():
            return _choose(store, budget, labels, layers, running, device)
        with store.alone("selecting"):
            return _choose(store, budget, labels, layers, running, device)
    finally:
        distributed.leave()


def _choose(
    store: Store, budget: int, labels: str, layers: Sequence[str] | None, running: Running, device: torch.device
) -> int:
    model, wanted = latest_model(store)
    model.to(device)
    pool, trusted = open_images(store, "pool", wanted), open_images(store, "validation", wanted)
    row_of = {image: row for row, image in enumerate(pool.ids)}
    picked = [row_of[image] for image in picked_images(store) if image in row_of]
    labeled = {row_of[image]: number for image, number in settled(store).items() if image in row_of}
    layers = layers or store.settings().get("layers") or None
    executor = distributed.TorchrunExecutor(
        model=model,
        device=device,
        folder=store.folder / NAME,
        shard_size=running.shard,
    )
    chosen = select(
        model,
        pool,
        trusted,
        budget=budget,
        labels=labels,
        layers=layers,
        exclude=picked,
        labeled=labeled,
        batch_size=running.batch_size,
        num_workers=running.workers,
        device=device,
        progress=running.progress and distributed.rank() == 0,
        executor=executor,
    )
    number = distributed.everywhere(
        lambda: 0 if distributed.rank() else _record(store, chosen, model, pool, trusted, labels, running)
    )
    executor.clear()
    return number


def _record(
    store: Store,
    chosen: Selection,
    model: nn.Module,
    pool: WorkspaceImages,
    trusted: WorkspaceImages,
    labels: str,
    running: Running,
) -> int:
    """Records the selection as a new round and returns its number."""
    lost: dict[int, str] = {}
    probabilities = class_probabilities(
        model, pool, [row for row, *_ in chosen.rows()], running.reader(), unreadable=lost
    )
    kept = [row for row in chosen.rows() if row[0] not in lost]  # nobody could label an unreadable image
    centers = [center for _, _, center, _ in kept]
    wrong = class_probabilities(model, trusted, centers, running.reader()).argmax(dim=1).tolist()
    how = {
        "labels": labels,
        "layers": list(chosen.layers),
        "failures": chosen.num_failures,
        "notes": list(chosen.notes),
        "unreadable": {pool.ids[row]: why for row, why in {**chosen.unreadable, **lost}.items()},
        "pool_mix": pool_mix(model, pool, trusted, running.reader()),
    }
    picks = [
        Chosen(
            pool.ids[row],
            trusted.ids[center],
            center_guess,
            float(similarity),
            int(probability.argmax()),
            top_classes(probability),
        )
        for (row, similarity, center, _), center_guess, probability in zip(kept, wrong, probabilities, strict=True)
    ]
    return add_round(store, picks, how)


def course_for(store: Store, given: dict[str, Any], running: Running) -> Course:
    """The training settings for the current number of labels, overridden by `given`; balances classes by default."""
    batch_size, count = given.get("batch_size", Course.batch_size), max(1, len(settled(store)))
    epochs = given.get("epochs", min(MOST_EPOCHS, max(Course.epochs, STEPS * batch_size // count)))
    defaults = {"epochs": epochs, "patience": max(10, epochs // 4), "balanced": True, "workers": running.workers}
    return Course(**(defaults | given))


def learn(store: Store, course: Course, *, seed: int = 0, running: Running) -> dict[str, Any]:
    """Trains on all labels that people agree on and returns the recorded training. A killed one continues."""
    labels = settled(store)
    if not labels:
        raise WorkspaceError(f"There are no labels to train on. Label some images: rarefish label {store.folder}")
    with store.alone("training"):
        model, wanted = first_model(store)
        model.to(_device(running))
        data, trusted = open_images(store, "pool", wanted, labels), open_images(store, "validation", wanted)
        (learned, lost), (known, missing) = (load_into_memory(part, running.reader()) for part in (data, trusted))
        if missing:
            raise DataError(f"{len(missing)} validation images cannot be read, such as {next(iter(missing.values()))}")
        checkpoint = store.folder / "training.pt"
        generator = torch.Generator().manual_seed(seed)
        fitted = fit_files(model, learned, known, course, generator, checkpoint=checkpoint, progress=running.progress)
        name = f"{next_training(store):04d}-{len(labels)}-labels.pt"
        keep_weights(store, name, partial(save_weights, model))
        recall = [None if value != value else float(value) for value in fitted.recall]
        add_training(
            store,
            labels_spent=len(labels),
            weights=name,
            how={
                **asdict(course),
                **{"seed": seed, "epochs_run": fitted.epochs, "best_epoch": fitted.best_epoch},
                **{"model": model_key(store.settings()), "labels_key": labels_key(labels)},
                "left_out": list((lost | fitted.unreadable).values()),
            },
            accuracy=fitted.accuracy,
            recall=recall,
            counts=class_counts(trusted, len(recall)),
        )
        checkpoint.unlink(missing_ok=True)
    found = latest_training(store)
    assert found is not None
    try:
        log_training(store.folder, found)
    except Exception as error:  # an unreachable tracking server must not lose the training
        warn(f"The training was saved, but could not be logged to a tracking tool: {error}", stacklevel=2)
    return found


def evaluate_model(store: Store, data: Path | None, running: Running) -> Score:
    """The score of the latest model on the validation set, or on another folder or CSV file with the same classes."""
    model, wanted = latest_model(store)
    model.to(_device(running))
    classes = store.classes()
    if data is None:
        return evaluate(model, open_images(store, "validation", wanted), len(classes), running.reader())
    other = open_labeled(data, wanted.size, wanted.mode, wanted.mean, wanted.std)
    unknown = [name for name in other.classes if name not in classes]
    if unknown:
        raise ArgumentError(f"{data} has classes that the workspace does not have: {list_some(unknown)}.")
    labels = tuple(classes.index(other.classes[label]) for label in other.labels)
    other = replace(other, labels=labels, classes=tuple(classes))
    return evaluate(model, other, len(classes), running.reader())


def _device(running: Running) -> torch.device:
    if running.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return check_device(running.device)


def _join_processes(running: Running) -> torch.device:
    assigned = distributed.join()
    return assigned if running.device == "auto" else check_device(running.device)


def check_device(name: str) -> torch.device:
    """The device with this name; raises ArgumentError if it cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:
        raise ArgumentError(f"The device {name!r} is not available: {str(error).splitlines()[0]}") from error
    return device
