"""A turn of real work on a workspace: choose images, train on what was labeled, look how well it does."""

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
from rarefish.workspace.images import Shelf, hold, shelve
from rarefish.workspace.model import first_model, latest_model, save_weights
from rarefish.workspace.predictions import answer_chances, class_counts, likeliest, pool_mix
from rarefish.workspace.store import Store
from rarefish.workspace.tracking import log_training

STEPS, MOST_EPOCHS = 600, 150
"""So many steps make a training, where there are few labels; but not more epochs than this."""


@dataclass(frozen=True)
class Running:
    """How much of the machine is used."""

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
    """The number of a new round; under torchrun all processes choose, and the first writes.

    What was scored is kept in the workspace until the end: a killed selection goes on where it stopped.
    """
    device = _join(running)
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
    pool, trusted = shelve(store, "pool", wanted), shelve(store, "validation", wanted)
    place = {image: row for row, image in enumerate(pool.ids)}
    asked = [place[image] for image in picked_images(store) if image in place]
    told = {place[image]: number for image, number in settled(store).items() if image in place}
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
        exclude=asked,
        labeled=told,
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
    store: Store, chosen: Selection, model: nn.Module, pool: Shelf, trusted: Shelf, labels: str, running: Running
) -> int:
    """Writes what was chosen as a new round; its number."""
    lost: dict[int, str] = {}
    chance = answer_chances(model, pool, [row for row, *_ in chosen.rows()], running.reader(), unreadable=lost)
    kept = [row for row in chosen.rows() if row[0] not in lost]  # nobody could label the others
    centers = [center for _, _, center, _ in kept]
    wrong = answer_chances(model, trusted, centers, running.reader()).argmax(dim=1).tolist()
    how = {
        "labels": labels,
        "layers": list(chosen.layers),
        "failures": chosen.num_failures,
        "notes": list(chosen.notes),
        "unreadable": {pool.ids[row]: why for row, why in {**chosen.unreadable, **lost}.items()},
        "pool_mix": pool_mix(model, pool, trusted, running.reader()),
    }
    picks = [
        Chosen(pool.ids[row], trusted.ids[center], taken_for, float(alike), int(likely.argmax()), likeliest(likely))
        for (row, alike, center, _), taken_for, likely in zip(kept, wrong, chance, strict=True)
    ]
    return add_round(store, picks, how)


def course_for(store: Store, given: dict[str, Any], running: Running) -> Course:
    """How to train on as many labels as there are: a few hundred steps at least, all classes equally often."""
    batch_size, count = given.get("batch_size", Course.batch_size), max(1, len(settled(store)))
    epochs = given.get("epochs", min(MOST_EPOCHS, max(Course.epochs, STEPS * batch_size // count)))
    own = {"epochs": epochs, "patience": max(10, epochs // 4), "balanced": True, "workers": running.workers}
    return Course(**(own | given))


def learn(store: Store, course: Course, *, seed: int = 0, running: Running) -> dict[str, Any]:
    """The row of a new training on all labels that people agree on; a killed one goes on where it stopped."""
    labels = settled(store)
    if not labels:
        raise WorkspaceError(f"There are no labels to learn from. Label some: rarefish label {store.folder}")
    with store.alone("training"):
        model, wanted = first_model(store)
        model.to(_device(running))
        data, trusted = shelve(store, "pool", wanted, labels), shelve(store, "validation", wanted)
        (learned, lost), (known, missing) = (hold(part, running.reader()) for part in (data, trusted))
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
    except Exception as error:  # a tracking server that is down is no reason to lose a training
        warn(f"The training is kept, but could not be logged elsewhere: {error}", stacklevel=2)
    return found


def judge(store: Store, data: Path | None, running: Running) -> Score:
    """How well the latest model does on the validation set, or on another folder or CSV file with the same classes."""
    model, wanted = latest_model(store)
    model.to(_device(running))
    classes = store.classes()
    if data is None:
        return evaluate(model, shelve(store, "validation", wanted), len(classes), running.reader())
    other = open_labeled(data, wanted.size, wanted.mode, wanted.mean, wanted.std)
    strange = [name for name in other.classes if name not in classes]
    if strange:
        raise ArgumentError(f"{data} has classes that the workspace has not: {list_some(strange)}.")
    labels = tuple(classes.index(other.classes[label]) for label in other.labels)
    other = replace(other, labels=labels, classes=tuple(classes))
    return evaluate(model, other, len(classes), running.reader())


def _device(running: Running) -> torch.device:
    if running.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return check_device(running.device)


def _join(running: Running) -> torch.device:
    own = distributed.join()
    return own if running.device == "auto" else check_device(running.device)


def check_device(name: str) -> torch.device:
    """The device of that name, if there is one."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:
        raise ArgumentError(f"There is no device {name!r} here: {str(error).splitlines()[0]}") from error
    return device
