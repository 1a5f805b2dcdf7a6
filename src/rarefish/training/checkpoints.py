"""Checkpoints of a running training: written atomically after every epoch, read only by the same training."""

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
from rarefish.training.config import Course, TrainingResult

FORMAT = "rarefish.training.image_training 1"


def fingerprint(model: nn.Module, data: Any, validation: Any, course: Course, generator: torch.Generator) -> str:
    """Returns a hash that identifies a training by its settings, data, initial weights and random state.

    Image files are identified by name and label; a change of a file's content is not noticed.
    """
    settings = {name: value for name, value in asdict(course).items() if name != "workers"}
    return fingerprint_of(settings, data, validation, dict(model.state_dict()), generator.get_state())


def fingerprint_of(*values: Any) -> str:
    """Returns a hash of all the values; it changes when any of them changes."""
    digest = hashlib.sha256()
    for part in _parts(values):
        digest.update(part + b"\0")
    return digest.hexdigest()


def read_checkpoint(path: Path, key: str) -> dict[str, Any] | None:
    """Returns the checkpoint at `path`, or None if there is none or it belongs to another training."""
    if not path.exists():
        return None
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        checkpoint = None
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        raise DataError(
            f"{path} is not a checkpoint of this program, or is damaged. Move it away, or name another file."
        )
    return checkpoint if checkpoint["fingerprint"] == key else None


def write_checkpoint(
    path: Path,
    key: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    best: dict[str, Tensor],
    result: TrainingResult,
) -> None:
    state = {
        "format": FORMAT,
        "fingerprint": key,
        "best": best,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
        "history": [asdict(epoch) for epoch in result.history],
        "unreadable": result.unreadable,
    }
    replace_whole(path, lambda file: torch.save(state, file))


def save_epoch(
    path: Path, key: str, epochs: int, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> None:
    """Writes the state of a training after `epochs` epochs."""
    state = {
        "format": FORMAT,
        "fingerprint": key,
        "epochs": epochs,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    replace_whole(path, lambda file: torch.save(state, file))


def resume(path: Path, key: str, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> int:
    """Restores model, optimizer and generator from the checkpoint and returns the number of epochs already trained.

    Returns 0 and changes nothing if there is no checkpoint of this training.
    """
    checkpoint = read_checkpoint(path, key)
    if not checkpoint:
        return 0
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    generator.set_state(checkpoint["generator"])
    return checkpoint["epochs"]


def _parts(value: Any) -> Iterator[bytes]:
    """Yields bytes that represent a value, in a fixed order."""
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
    """Encodes a text without memory addresses, which differ from process to process."""
    return re.sub(r" at 0x\w+", "", text).encode(errors="backslashreplace")
