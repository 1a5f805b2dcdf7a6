"""Train a head on the embeddings of a workspace's labeled and trusted images, and evaluate it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rarefish.data.image_files import ImageFiles
from rarefish.embedding import embed
from rarefish.errors import WorkspaceError
from rarefish.models.classifier import classifier_of, with_head
from rarefish.models.loading import read_weights
from rarefish.training.evaluation import Score, score
from rarefish.training.linear_head import LinearHead, fit_linear_head
from rarefish.workspace.answers import settled
from rarefish.workspace.dataset import WorkspaceImages
from rarefish.workspace.embeddings import EmbeddedPart, HeadModel, embed_images, why_head
from rarefish.workspace.model import save_weights
from rarefish.workspace.round_history import (
    add_training,
    check_weights,
    keep_weights,
    labels_key,
    latest_training,
    model_key,
    next_training,
    read_how,
)
from rarefish.workspace.running import Running
from rarefish.workspace.store import Store

OUT_OF_FOLD, VALIDATION = "out of fold", "validation"
"""How a training was scored: trusted images by heads that were fitted without them, or a validation set held out."""


@dataclass(frozen=True)
class Examples:
    """Labeled rows: first the pool images with labels, then the trusted images unless they are held out."""

    features: Tensor
    labels: Tensor
    num_pool: int
    lost: tuple[str, ...]
    """Why some labeled images have no embedding."""


def train_head(store: Store, head: HeadModel, *, seed: int = 0, running: Running) -> None:
    """Fits a head, saves it with its backbone as one model, and records the training.

    Unless the workspace holds the trusted images out, the head also learns from them, and its accuracy on them is
    estimated out of fold: each is classified by a head that was fitted without it.
    """
    labels, settings = settled(store), store.settings()
    is_held_out = bool(settings.get("hold_out"))
    if not labels and is_held_out:
        raise WorkspaceError(f"There are no labels to train on. Label some images: rarefish label {store.folder}")
    parts = embed_images(store, head, running)
    examples = gather(parts, labels, is_held_out)
    fitted = fit_linear_head(
        examples.features,
        examples.labels,
        len(store.classes()),
        generator=torch.Generator().manual_seed(seed),
    )
    found, counts = _score(fitted, examples, parts["validation"], is_held_out)
    name = f"{next_training(store):04d}-{len(labels)}-labels.pt"
    linear = fitted.module()
    assert isinstance(linear, nn.Linear)
    keep_weights(store, name, partial(save_weights, with_head(head.model, head.classifier, linear)))
    add_training(
        store,
        labels_spent=len(labels),
        weights=name,
        how={
            **{"trained": "head", "what": "a head on frozen features", "why": why_head(settings)},
            "scored": VALIDATION if is_held_out else OUT_OF_FOLD,
            "trusted": 0 if is_held_out else len(parts["validation"].ids),
            **{"classifier": head.classifier, "layer": head.layer, "ridge": fitted.ridge, "seed": seed},
            **{"temperature": fitted.temperature, "embeddings": parts["pool"].embeddings.model},
            **{"model": model_key(settings), "labels_key": labels_key(labels), "left_out": list(examples.lost)},
        },
        accuracy=found.accuracy,
        recall=[None if value != value else float(value) for value in found.recall],
        counts=counts,
    )


def gather(parts: Mapping[str, EmbeddedPart], labels: Mapping[int, int], is_held_out: bool) -> Examples:
    """Returns the rows to learn from."""
    pool, trusted = parts["pool"], parts["validation"]
    rows = [row for row, image in enumerate(pool.ids) if image in labels]
    features, known = [pool.embeddings.values[rows]], [labels[pool.ids[row]] for row in rows]
    if not is_held_out:
        features.append(trusted.embeddings.values)
        known += trusted.labels
    lost = [
        why for part in (pool, trusted) for image, why in part.unreadable.items() if part is trusted or image in labels
    ]
    return Examples(
        torch.from_numpy(np.concatenate(features).astype(np.float32)), torch.tensor(known), len(rows), tuple(lost)
    )


def _score(fitted: LinearHead, examples: Examples, trusted: EmbeddedPart, is_held_out: bool) -> tuple[Score, list[int]]:
    """Returns the score on the trusted images, and the number of those that were classified, per class."""
    labels = torch.tensor(trusted.labels)
    if is_held_out:
        probabilities = fitted.probabilities(np.array(trusted.embeddings.values, dtype=np.float32))
    else:
        probabilities = fitted.out_of_fold_probabilities[examples.num_pool :]
    known = ~probabilities.isnan().any(dim=1)
    if not known.any():
        raise WorkspaceError(
            "The accuracy cannot be estimated: no class has two images with labels. Label some images, or add "
            "validation images."
        )
    num_classes = probabilities.shape[1]
    counts = labels[known].bincount(minlength=num_classes).tolist()
    return score(probabilities[known].argmax(dim=1), labels[known], num_classes), counts


def latest_head(store: Store, head: HeadModel) -> nn.Linear | None:
    """Returns the head of the latest training, or None if there is none or the whole network was trained."""
    last = latest_training(store)
    if last is None or read_how(last).get("trained") != "head":
        return None
    check_weights(store, last["weights"])
    own, found = classifier_of(head.model, head.classifier), read_weights(store.folder / "models" / last["weights"])
    linear = nn.Linear(own.in_features, own.out_features)
    linear.load_state_dict({key: found[f"{head.classifier}.{key}"] for key in ("weight", "bias")})
    return linear


def recorded_score(training: Mapping[str, Any], recall: list[float | None]) -> Score:
    """Returns the score of a training that was scored out of fold; it has no predictions."""
    values = torch.tensor([torch.nan if value is None else value for value in recall])
    return Score(training["accuracy"], values, torch.empty(0, dtype=torch.long))


def evaluate_head(
    model: nn.Module, layer: str, classifier: str, data: ImageFiles | WorkspaceImages, running: Running
) -> Score:
    """Returns the score of a model with a head on labeled images; its backbone runs on the fastest backend."""
    found = embed(
        model,
        data,
        layer=layer,
        batch_size=running.batch_size,
        num_workers=running.workers,
        device=running.torch_device(),
        strict=True,
        progress=running.progress,
    )
    linear = classifier_of(model, classifier)
    with torch.no_grad():
        predicted = linear.cpu()(torch.from_numpy(found.values)).argmax(dim=1)
    return score(predicted, torch.tensor(data.labels), linear.out_features)
