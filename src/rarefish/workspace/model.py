"""The model of a workspace, with its initial weights or those of its last training run."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from rarefish.data.image_io import open_picture
from rarefish.data.reader import Reader
from rarefish.data.remaining_indices import draw_some
from rarefish.errors import ArgumentError, DataError, WorkspaceError
from rarefish.io import replace_whole
from rarefish.models.efficientnet_lite import NAME as PRETRAINED
from rarefish.models.efficientnet_lite import weights_file
from rarefish.models.layer_selection import choose_layers, find_layers, widths_below_logits
from rarefish.models.loading import load_model, load_weights
from rarefish.models.preprocessing import Input, channels_of, check_outputs, input_of
from rarefish.training.rotation import ROTATION, PretrainingJob, pretrain_rotation
from rarefish.workspace.dataset import WorkspaceImages, open_images
from rarefish.workspace.round_history import check_weights, keep_weights, latest_training, model_key
from rarefish.workspace.store import FILE, Store, open_store
from rarefish.workspace.trust import check_trust

PRETRAINING_IMAGES = 4_000
"""Number of pool images used for rotation pretraining."""
SAMPLED = 25
"""Number of pool images whose size determines the default model."""
PHOTOGRAPH = 64
"""An image counts as a photograph if both sides are longer than this number of pixels."""


def first_model(store: Store) -> tuple[nn.Module, Input]:
    """Returns the model before any training on labels: with given, random, or rotation-pretrained weights."""
    settings = store.settings()
    if not settings.get("model"):
        raise WorkspaceError(
            f"{store.folder} has no model yet. Set one with: rarefish init … --model {PRETRAINED} (for photographs; "
            "needs pip install 'rarefish[pretrained]'), or another one."
        )
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


def default_model(paths: Sequence[Path]) -> str | None:
    """Returns the pretrained model if its weights are installed and most of the images are photographs."""
    if weights_file() is None:
        return None
    sides = []
    for path in paths[:: max(1, len(paths) // SAMPLED)][:SAMPLED]:
        try:
            sides.append(min(open_picture(path, str(path)).size))
        except DataError:  # unreadable images are reported when they are indexed
            continue
    return PRETRAINED if sides and median(sides) > PHOTOGRAPH else None


def build(settings: Mapping[str, Any], num_classes: int) -> tuple[nn.Module, Input]:
    """Builds and checks the model named in the settings, and returns it with its input format."""
    address, weights, mode, size = (settings.get(name) for name in ("model", "weights", "mode", "size"))
    assert address is not None
    if address == PRETRAINED and settings.get("start") and not weights:
        raise ArgumentError(f"{address} starts with its ImageNet weights. Leave out --start {settings['start']}.")
    path = Path(weights) if weights else None
    model = load_model(address, num_classes, channels_of(address, mode), path, new_classifier=True)
    wanted = input_of(address, model, size=tuple(size) if size else None, mode=mode)
    check_outputs(model, wanted, num_classes)
    if settings.get("layers"):
        find_layers(model, settings["layers"])
    return model, wanted


def latest_model(store: Store) -> tuple[nn.Module, Input]:
    """Returns the model with the weights of its last training run, or the initial model if there was none."""
    model, wanted = first_model(store)
    last = latest_training(store)
    if last:
        _load_saved(model, store, last["weights"])
    return model, wanted


def describe_layers(address: str, weights: Path | None, num_classes: int, mode: str | None) -> list[dict[str, Any]]:
    """Returns the layers below the logits in forward order, with their channels and whether they are defaults."""
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
    """Saves the model's state dict, on the CPU, by replacing the file atomically."""
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    replace_whole(path, lambda file: torch.save(weights, file))


def _load_saved(model: nn.Module, store: Store, name: str) -> None:
    check_weights(store, name)
    load_weights(model, store.folder / "models" / name)


def _pretrain(model: nn.Module, pool: WorkspaceImages, num_classes: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    rows = draw_some(min(PRETRAINING_IMAGES, len(pool)), len(pool), generator).tolist()
    images = torch.cat([batch.images for batch in Reader(progress=False).read(pool, rows, unreadable={})])
    (pretrained,) = pretrain_rotation([PretrainingJob(model, images, num_classes, generator)], ROTATION)
    return pretrained
