"""Select a round of images in a workspace, train a model on its labels, and evaluate the model."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from warnings import warn

import torch
from torch import Tensor

from rarefish.data.image_files import ImageFiles
from rarefish.data.open_dataset import open_labeled
from rarefish.distributed import torchrun as distributed
from rarefish.distributed.resume_folder import NAME
from rarefish.errors import ArgumentError, DataError, WorkspaceError, list_some
from rarefish.models.preprocessing import Input
from rarefish.selection import Selection, select
from rarefish.training.config import FINE_TUNING, Training
from rarefish.training.evaluation import Score, evaluate
from rarefish.training.loop import fit
from rarefish.workspace.answers import settled
from rarefish.workspace.dataset import WorkspaceImages, load_into_memory, open_images
from rarefish.workspace.embeddings import EmbeddedPart, HeadModel, embed_images, head_model, why_network
from rarefish.workspace.head_training import OUT_OF_FOLD, evaluate_head, latest_head, recorded_score, train_head
from rarefish.workspace.model import first_model, latest_model, save_weights
from rarefish.workspace.near_copies import find_near_copies
from rarefish.workspace.round_history import (
    Chosen,
    add_round,
    add_training,
    keep_weights,
    labels_key,
    latest_training,
    model_key,
    next_training,
    picked_images,
    read_how,
)
from rarefish.workspace.running import Running
from rarefish.workspace.store import Store
from rarefish.workspace.tensorboard_mlflow import log_training

STEPS, MOST_EPOCHS = 600, 150
"""With few labels, a training runs for about STEPS optimizer steps, but for at most MOST_EPOCHS epochs."""


SHOWN = 5
"""Number of classes whose probabilities an annotator sees."""
LOST = "could not be read again after it was chosen"


def choose_round(
    store: Store,
    budget: int,
    *,
    method: str | None = None,
    labels: str | None = None,
    layers: Sequence[str] | None = None,
    allow_near_copies: bool = False,
    running: Running,
) -> int:
    """Selects images, records them as a new round and returns its number.

    If only a head is trained, images are selected by their embeddings, and near-copies of images that were selected
    before are left out unless `allow_near_copies` is set. Under torchrun, the first process records the round. Finished
    shards are kept in the workspace until the end, so that a killed selection continues where it stopped.
    """
    device = running.join_processes()
    try:
        with nullcontext() if distributed.rank() else store.alone("selecting"):
            head = head_model(store)
            how = {"method": method, "labels": labels}
            if head is None:
                return _choose(store, budget, how, layers, running, device)
            return _choose_on_embeddings(store, head, budget, how, allow_near_copies, running)
    finally:
        distributed.leave()


def _choose_on_embeddings(
    store: Store, head: HeadModel, budget: int, how: dict[str, Any], allow_near_copies: bool, running: Running
) -> int:
    parts = embed_images(store, head, running)
    pool, trusted = parts["pool"], parts["validation"]
    picked, known = picked_images(store), settled(store)
    copies = set() if allow_near_copies else find_near_copies(store).superfluous(picked)
    excluded = pool.rows({*picked, *copies})
    left = len(pool.ids) - len({*excluded, *pool.rows(known)})
    if copies and left < budget:
        raise ArgumentError(
            f"Cannot choose {budget} images: the pool has {left} left that are not near-copies of images that were "
            "selected before or are trusted. Lower the budget, add images, or use --allow-near-copies."
        )
    # A head that has learned from the trusted images does not fail on them, so select() fits heads out of fold.
    chosen = select(
        latest_head(store, head) if store.settings().get("hold_out") else None,
        pool.embeddings,
        (trusted.embeddings, torch.tensor(trusted.labels)),
        budget=budget,
        cross_fit=False if store.settings().get("hold_out") else None,
        **how,
        exclude=excluded,
        labeled={row: known[pool.ids[row]] for row in pool.rows(known)},
        progress=running.progress and distributed.rank() == 0,
    )
    notes = list(chosen.notes)
    if copies:
        notes.append(f"{len(copies):,} pool images were left out as near-copies. --allow-near-copies includes them.")
    chosen = replace(chosen, notes=tuple(notes))
    return distributed.everywhere(lambda: 0 if distributed.rank() else _record(store, chosen, pool, trusted))


def _choose(
    store: Store, budget: int, how: dict[str, Any], layers: Sequence[str] | None, running: Running, device: torch.device
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
        **how,
        layers=layers,
        exclude=picked,
        labeled=labeled,
        batch_size=running.batch_size,
        num_workers=running.workers,
        device=device,
        progress=running.progress and distributed.rank() == 0,
        executor=executor,
    )
    number = distributed.everywhere(lambda: 0 if distributed.rank() else _record(store, chosen, pool, trusted))
    executor.clear()
    return number


def shares(labels: Sequence[int], num_classes: int) -> list[float]:
    """Returns the proportion of each class among the labels."""
    return [labels.count(number) / len(labels) for number in range(num_classes)]


def _record(
    store: Store,
    chosen: Selection,
    pool: WorkspaceImages | EmbeddedPart,
    trusted: WorkspaceImages | EmbeddedPart,
) -> int:
    """Records the selection as a new round, without images that have become unreadable, and returns its number."""
    is_lost = chosen.class_probabilities.isnan().all(dim=1).tolist()
    if all(is_lost):
        raise DataError(f"None of the {len(chosen)} chosen images can be read anymore. Select again.")
    known = dict(pool.unreadable) if isinstance(pool, EmbeddedPart) else {}
    lost = {row: LOST for row, is_gone in zip(chosen.indices.tolist(), is_lost, strict=True) if is_gone}
    how = {
        "method": chosen.method,
        "layers": list(chosen.layers),
        "failures": chosen.num_failures,
        "notes": list(chosen.notes),
        "unreadable": {**known, **{pool.ids[row]: why for row, why in {**chosen.unreadable, **lost}.items()}},
        "pool_mix": None if chosen.pool_mix is None else chosen.pool_mix.tolist(),
        "validation_mix": shares(trusted.labels, len(store.classes())),
        "pool_mix_interval": None if chosen.pool_mix_interval is None else chosen.pool_mix_interval.tolist(),
    }
    columns = zip(
        *(chosen.rows(), chosen.relative_similarities.tolist()),
        *(chosen.center_predictions.tolist(), chosen.class_probabilities),
        strict=True,
    )
    picks = [
        Chosen(
            pool.ids[row],
            trusted.ids[center],
            center_guess,
            float(similarity),
            int(probability.argmax()),
            top_classes(probability),
        )
        for (row, _, center, _), similarity, center_guess, probability in columns
        if row not in lost  # nobody could label these
    ]
    return add_round(store, picks, how)


def top_classes(probabilities: Tensor) -> tuple[tuple[int, float], ...]:
    """Returns the most likely classes with their probabilities."""
    best = probabilities.topk(min(SHOWN, len(probabilities)))
    return tuple(zip(best.indices.tolist(), [round(value, 4) for value in best.values.tolist()], strict=True))


def training_for(store: Store, given: dict[str, Any], running: Running) -> Training:
    """Returns training settings for the current number of labels, overridden by `given`; classes are balanced."""
    batch_size, count = given.get("batch_size", FINE_TUNING.batch_size), max(1, len(settled(store)))
    epochs = given.get("epochs", min(MOST_EPOCHS, max(FINE_TUNING.epochs, STEPS * batch_size // count)))
    defaults = {"epochs": epochs, "patience": max(10, epochs // 4), "balanced": True, "num_workers": running.workers}
    return replace(FINE_TUNING, **(defaults | given))


def train_model(store: Store, training: Training, *, seed: int = 0, running: Running) -> dict[str, Any]:
    """Trains the whole network on all labels that people agree on and returns the recorded training.

    The network never learns from the trusted images, which determine the epoch whose weights are kept. Resumes a
    training that was killed.
    """
    labels = settled(store)
    if not labels:
        raise WorkspaceError(f"There are no labels to train on. Label some images: rarefish label {store.folder}")
    with store.alone("training"):
        _train_network(store, labels, training, seed, running)
    return _logged(store)


def train_head_model(store: Store, head: HeadModel, *, seed: int = 0, running: Running) -> dict[str, Any]:
    """Trains a head on the frozen features of the labeled and trusted images and returns the recorded training."""
    with store.alone("training"):
        train_head(store, head, seed=seed, running=running)
    return _logged(store)


def _train_network(store: Store, labels: dict[int, int], training: Training, seed: int, running: Running) -> None:
    model, wanted = first_model(store)
    model.to(running.torch_device())
    data, trusted = open_images(store, "pool", wanted, labels), open_images(store, "validation", wanted)
    (learned, lost), (known, missing) = (load_into_memory(part, running.reader()) for part in (data, trusted))
    if missing:
        raise DataError(f"{len(missing)} validation images cannot be read, such as {next(iter(missing.values()))}")
    checkpoint = store.folder / "training.pt"
    generator = torch.Generator().manual_seed(seed)
    fitted = fit(
        *(model, learned, None, training, generator),
        validation=known,
        checkpoint=checkpoint,
        progress=running.progress,
    )
    name = f"{next_training(store):04d}-{len(labels)}-labels.pt"
    keep_weights(store, name, partial(save_weights, model))
    recall = [None if value != value else float(value) for value in fitted.recall]
    add_training(
        store,
        labels_spent=len(labels),
        weights=name,
        how={
            **asdict(training),
            **{"seed": seed, "epochs_run": fitted.epochs, "best_epoch": fitted.best_epoch},
            **{"trained": "network", "what": "the whole network", "scored": "validation"},
            "why": why_network(store.settings()) or "as you asked",
            **{"model": model_key(store.settings()), "labels_key": labels_key(labels)},
            "left_out": list((lost | fitted.unreadable).values()),
        },
        accuracy=fitted.accuracy,
        recall=recall,
        counts=torch.tensor(trusted.labels).bincount(minlength=len(recall)).tolist(),
    )
    checkpoint.unlink(missing_ok=True)


def _logged(store: Store) -> dict[str, Any]:
    """Returns the latest training after logging it to tracking tools."""
    found = latest_training(store)
    assert found is not None
    try:
        log_training(store.folder, found)
    except Exception as error:  # the training must not be lost if a tracking server is unreachable
        warn(f"The training was saved, but could not be logged to a tracking tool: {error}", stacklevel=2)
    return found


def evaluate_model(store: Store, data: Path | None, running: Running) -> Score:
    """Returns the score of the latest model on the validation set, or on a folder or CSV file with the same classes.

    The score on a validation set from which the model has learned is the one that the training recorded out of fold.
    """
    last = latest_training(store)
    how = read_how(last) if last else {}
    if data is None and last and how.get("scored") == OUT_OF_FOLD:
        return recorded_score(last, json.loads(last["recall"]))
    model, wanted = latest_model(store)
    model.to(running.torch_device())
    classes = store.classes()
    images = open_images(store, "validation", wanted) if data is None else _open_test_set(data, wanted, classes)
    if how.get("trained") == "head":
        return evaluate_head(model, how["layer"], how["classifier"], images, running)
    return evaluate(model, images, len(classes), running.reader())


def _open_test_set(data: Path, wanted: Input, classes: list[str]) -> ImageFiles:
    """Returns the images of a folder or CSV file, with labels numbered as in the workspace."""
    other = open_labeled(data, wanted.size, wanted.mode, wanted.mean, wanted.std)
    unknown = [name for name in other.classes if name not in classes]
    if unknown:
        raise ArgumentError(f"{data} has classes that the workspace does not have: {list_some(unknown)}.")
    labels = tuple(classes.index(other.classes[label]) for label in other.labels)
    return replace(other, labels=labels, classes=tuple(classes))
