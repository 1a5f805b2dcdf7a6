"""Checkpoints of a training run, written atomically after every epoch and read only by the same run."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from rarefish.errors import DataError
from rarefish.io import replace_whole
from rarefish.training.config import Epoch, Training, TrainingResult

FORMAT = "rarefish.training 2"


def fingerprint(model: nn.Module, data: Any, validation: Any, training: Training, generator: torch.Generator) -> str:
    """Returns a hash that identifies a training run by its settings, data, initial weights and random state.

    Image files are identified by name and label; changes to the content of a file go unnoticed.
    """
    settings = {name: value for name, value in asdict(training).items() if name != "num_workers"}
    return fingerprint_of(settings, data, validation, dict(model.state_dict()), generator.get_state())


def fingerprint_of(*values: Any) -> str:
    """Returns a hash that changes when any of the values changes."""
    digest = hashlib.sha256()
    for part in _parts(values):
        digest.update(part + b"\0")
    return digest.hexdigest()


def read_checkpoint(path: Path, key: str) -> dict[str, Any] | None:
    """Returns the checkpoint at `path`, or None if there is none or it belongs to another run."""
    if not path.exists():
        return None
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        checkpoint = None
    if not isinstance(checkpoint, dict) or not str(checkpoint.get("format")).startswith("rarefish.training"):
        raise DataError(f"{path} is damaged or not a checkpoint of rarefish. Move it away, or choose another file.")
    return checkpoint if checkpoint["fingerprint"] == key else None


def save_epoch(
    path: Path,
    key: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    result: TrainingResult,
    best: dict[str, Tensor],
) -> None:
    """Writes the state of a training run after an epoch; `best` contains the weights of the best epoch, if any."""
    state = {
        "format": FORMAT,
        "fingerprint": key,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
        "history": [asdict(epoch) for epoch in result.history],
        "unreadable": result.unreadable,
    }
    replace_whole(path, lambda file: torch.save({**state, "best": best} if best else state, file))


def resume(
    path: Path, key: str, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> tuple[TrainingResult, dict[str, Tensor]]:
    """Restores model, optimizer and generator from the checkpoint; returns the history and the best epoch's weights.

    If there is no checkpoint of this run, both are empty and nothing is changed.
    """
    checkpoint = read_checkpoint(path, key)
    if not checkpoint:
        return TrainingResult(), {}
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    generator.set_state(checkpoint["generator"])
    history = tuple(Epoch(**epoch) for epoch in checkpoint["history"])
    return TrainingResult(history, checkpoint["unreadable"]), checkpoint.get("best", {})


def _parts(value: Any) -> Iterator[bytes]:
    """Yields bytes that represent the value, in a fixed order."""
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        yield from _parts(list(value.items()))
    elif isinstance(value, (tuple, list)) and any(not isinstance(part, (int, float, str)) for part in value):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, TensorDataset):
        yield from _parts(value.tensors)
    elif isinstance(value, Subset):
        yield from _parts((value.dataset, list(value.indices)))
    elif is_dataclass(value) or isinstance(value, (tuple, list, str, int, float, type(None))):
        yield _without_addresses(repr(value))
    else:
        names = getattr(value, "paths", None) or getattr(value, "samples", None)
        yield _without_addresses(
            f"{type(value).__qualname__} {len(value) if hasattr(value, '__len__') else ''} {names}"
        )


def _without_addresses(text: str) -> bytes:
    """Returns the text as bytes without memory addresses, which differ between processes."""
    return re.sub(r" at 0x\w+", "", text).encode(errors="backslashreplace")
