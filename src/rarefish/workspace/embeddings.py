"""The embeddings of a workspace's images: computed once per image by the frozen backbone, and kept in its folder.

A workspace whose model is pretrained trains only a head on these embeddings, unless it was told to train the whole
network. Embeddings belong to the initial weights of the model; heads and fine-tuned networks do not change them.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rarefish.data.embeddings import Embeddings
from rarefish.distributed.torchrun import TorchrunExecutor, rank
from rarefish.embedding import embed
from rarefish.embedding.compute import default_layer
from rarefish.errors import OtherModelError, WorkspaceError
from rarefish.models.classifier import replaceable_classifier
from rarefish.models.loading import has_weights
from rarefish.models.preprocessing import Input
from rarefish.workspace.dataset import WorkspaceImages, open_images
from rarefish.workspace.model import first_model
from rarefish.workspace.running import Running
from rarefish.workspace.store import Store

FOLDER = "embeddings"
PARTS = ("validation", "pool")


@dataclass(frozen=True)
class HeadModel:
    """The initial model of a workspace that trains only a head."""

    model: nn.Module
    wanted: Input
    classifier: str
    """The name of the layer whose input is the embedding, and which a head replaces."""

    @property
    def layer(self) -> str:
        """The layer whose values are the embeddings."""
        return default_layer(self.classifier)


@dataclass(frozen=True)
class EmbeddedPart:
    """The images of the pool or of the validation set that can be read, with their embeddings."""

    ids: tuple[int, ...]
    """The ids of the images in the workspace."""
    labels: tuple[int, ...]
    """The classes of validation images; -1 for pool images."""
    embeddings: Embeddings
    unreadable: Mapping[int, str]
    """The ids of images without an embedding, with the reasons."""
    num_new: int
    """Number of images that were computed now."""
    seconds: float
    """Time that this took."""

    def rows(self, ids: "Mapping[int, object] | set[int]") -> list[int]:
        """Returns the rows of those images that have one, in order."""
        return [row for row, image in enumerate(self.ids) if image in ids]


def why_network(settings: Mapping[str, Any]) -> str | None:
    """Returns why the whole network is trained, or None if only a head is trained on frozen features."""
    choice, address = settings.get("finetune"), settings.get("model") or ""
    if choice is not None:
        return "because the workspace was created with --finetune" if choice else None
    if settings.get("weights") or has_weights(address):
        return None
    kind = "pretrained on rotated images only" if settings.get("start") == "rotation" else "random"
    return f"because the initial weights are {kind}"


def why_head(settings: Mapping[str, Any]) -> str:
    """Returns why only a head is trained."""
    if settings.get("finetune") is False:
        return "because the workspace was created with --no-finetune"
    return "because the model is pretrained"


def head_model(store: Store) -> HeadModel | None:
    """Returns the initial model if only a head is trained, or None if the whole network is trained."""
    if why_network(store.settings()) is not None:
        return None
    model, wanted = first_model(store)
    classifier = replaceable_classifier(model, torch.zeros(1, wanted.channels, *wanted.size))
    if classifier is None and store.settings().get("finetune") is False:
        raise WorkspaceError(
            "The model's output is not that of a linear layer with a bias, so a head cannot replace it. Use another "
            "model, or train the whole network: rarefish init … --finetune"
        )
    return None if classifier is None else HeadModel(model.eval(), wanted, classifier)


def embedding_file(store: Store, part: str) -> Path:
    """Returns the path of the embeddings of the "pool" or the "validation" set."""
    return store.folder / FOLDER / f"{part}.safetensors"


def is_embedded(store: Store) -> bool:
    """Returns whether the pool and the validation set have embeddings; some may be missing or out of date."""
    return all(embedding_file(store, part).exists() for part in PARTS)


def remove_embeddings(store: Store) -> None:
    """Deletes all embeddings of the workspace, finished or not."""
    for part in PARTS:
        for path in embedding_file(store, part).parent.glob(f"{part}.safetensors*"):
            path.unlink(missing_ok=True)


def embed_images(store: Store, head: HeadModel, running: Running, *, backend: str = "auto") -> dict[str, EmbeddedPart]:
    """Returns the embeddings of all images by part; computes those that are missing and keeps them in the workspace.

    Raises WorkspaceError if the embeddings there were computed by other weights or code. Under torchrun, the processes
    share the work. A killed run is resumed.
    """
    if rank():
        return {part: _embed_part(store, head, part, running, backend) for part in PARTS}
    with store.alone("embedding"):
        return {part: _embed_part(store, head, part, running, backend) for part in PARTS}


def _embed_part(store: Store, head: HeadModel, part: str, running: Running, backend: str) -> EmbeddedPart:
    images, path, start = open_images(store, part, head.wanted), embedding_file(store, part), time.monotonic()
    before = _known_ids(path)
    try:
        found = embed(
            head.model,
            images,
            layer=head.layer,
            path=path,
            batch_size=running.batch_size,
            num_workers=running.workers,
            device=running.torch_device(),
            backend=backend,
            progress=running.progress and rank() == 0,
            executor=TorchrunExecutor(),
        )
    except OtherModelError as error:
        raise WorkspaceError(
            f"The embeddings in {path.parent} were computed by another model: its weights, its code, its layer or the "
            f"image size have changed. Restore them, or compute all embeddings again: rarefish embed {store.folder} "
            "--again"
        ) from error
    assert found.ids is not None
    now = {name for row, name in enumerate(found.ids.tolist()) if row not in found.unreadable}
    return _readable(images, found, len(now - before), time.monotonic() - start)


def _known_ids(path: Path) -> set[bytes]:
    """Returns the content hashes of the images that already have embeddings."""
    from rarefish.embedding.embedding_file import Finished

    found = [Finished.read(one) for one in (path, path.with_name(f"{path.name}.unfinished"))]
    return {one for known in found if known for one in known.ids[known.done].tolist()}


def _readable(images: WorkspaceImages, found: Embeddings, num_new: int, seconds: float) -> EmbeddedPart:
    lost = {images.ids[row]: why for row, why in found.unreadable.items()}
    kept = [row for row in range(len(images)) if row not in found.unreadable]
    return EmbeddedPart(
        tuple(images.ids[row] for row in kept),
        tuple(images.labels[row] for row in kept),
        found.only(np.array(kept)) if lost else replace(found, labels=None),
        lost,
        num_new,
        seconds,
    )
