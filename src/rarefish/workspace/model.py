"""The model of a workspace: with its initial weights, or with those of its last training."""

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rarefish.data.index_set import draw_some
from rarefish.data.reader import Reader
from rarefish.errors import WorkspaceError
from rarefish.io import replace_whole
from rarefish.models.layers import choose_layers, find_layers, widths_below_logits
from rarefish.models.loading import load_model, load_weights
from rarefish.models.preprocessing import Input, channels_of, check_outputs, input_of
from rarefish.training.rotation import ROTATION, PretrainingJob, pretrain_rotation
from rarefish.workspace.history import damage_of_weights, keep_weights, latest_training, model_key
from rarefish.workspace.images import WorkspaceImages, open_images
from rarefish.workspace.store import FILE, Store, open_store
from rarefish.workspace.trust import check_trust

STARTS = ("random", "rotation")
PRETRAINING_IMAGES = 4_000
"""Pool images used for rotation pretraining."""


def first_model(store: Store) -> tuple[nn.Module, Input]:
    """The model before any training on labels: given weights, random ones, or rotation pretraining on the pool."""
    settings = store.settings()
    if not settings.get("model"):
        raise WorkspaceError(f"{store.folder} has no model yet. Set one: rarefish init … --model resnet18")
    check_trust(store)
    model, wanted = build(settings, len(store.classes()))
    if settings.get("start") == "rotation" and not settings.get("weights"):
        name = blake2b(model_key(settings).encode(), digest_size=4).hexdigest()
        start = store.folder / "models" / f"start-{name}.pt"
        if not start.exists():
            pretrained = _pretrain(model, open_images(store, "pool", wanted), len(store.classes()))
            keep_weights(store, start.name, partial(save_weights, pretrained), replace=False)
        _load_saved(model, store, start.name)
    return model, wanted


def build(settings: Mapping[str, Any], num_classes: int) -> tuple[nn.Module, Input]:
    """Builds the model named in the settings, checks it, and returns it with its input format."""
    address, weights, mode, size = (settings.get(name) for name in ("model", "weights", "mode", "size"))
    assert address is not None
    path = Path(weights) if weights else None
    model = load_model(address, num_classes, channels_of(address, mode), path, new_classifier=True)
    wanted = input_of(address, model, size=tuple(size) if size else None, mode=mode)
    check_outputs(model, wanted, num_classes)
    if settings.get("layers"):
        find_layers(model, settings["layers"])
    return model, wanted


def latest_model(store: Store) -> tuple[nn.Module, Input]:
    """The model with the weights of its last training; before any training, the initial model."""
    model, wanted = first_model(store)
    last = latest_training(store)
    if last:
        _load_saved(model, store, last["weights"])
    return model, wanted


def describe_layers(address: str, weights: Path | None, num_classes: int, mode: str | None) -> list[dict[str, Any]]:
    """The layers below the logits in forward order, with their channels and whether they are used by default."""
    if (Path(address) / FILE).exists():
        with closing(open_store(Path(address))) as store:
            model, wanted = first_model(store)
    else:
        channels = channels_of(address, mode)
        model = load_model(address, num_classes, channels, weights, new_classifier=True)
        wanted = input_of(address, model, mode=mode)
    blank = torch.zeros(1, wanted.channels, *wanted.size)
    chosen = choose_layers(model, blank)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    return [
        {"name": name, "channels": channels, "kind": kinds[name], "is_chosen": name in chosen}
        for name, channels in widths_below_logits(model, blank).items()
    ]


def save_weights(model: nn.Module, path: Path) -> None:
    """Saves the model's state dict on the CPU, replacing the file as a whole."""
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    replace_whole(path, lambda file: torch.save(weights, file))


def _load_saved(model: nn.Module, store: Store, name: str) -> None:
    damage = damage_of_weights(store, name)
    if damage:
        raise WorkspaceError(damage)
    load_weights(model, store.folder / "models" / name)


def _pretrain(model: nn.Module, pool: WorkspaceImages, num_classes: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    rows = draw_some(min(PRETRAINING_IMAGES, len(pool)), len(pool), generator).tolist()
    images = torch.cat([batch.images for batch in Reader(progress=False).read(pool, rows, unreadable={})])
    (pretrained,) = pretrain_rotation([PretrainingJob(model, images, num_classes, generator)], ROTATION)
    return pretrained
