"""A training under way, on disk: written whole after every epoch, read back only by the same training."""

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
from rarefish.training.config import Course, Fitted

FORMAT = "rarefish.training.image_training 1"


def fingerprint(model: nn.Module, data: Any, validation: Any, course: Course, generator: torch.Generator) -> str:
    """A text that differs where another training would: by settings, data, first weights and first chance.

    Of image files, their names and labels count; a file that is changed under its name is not noticed.
    """
    settings = {name: value for name, value in asdict(course).items() if name != "workers"}
    return fingerprint_of(settings, data, validation, dict(model.state_dict()), generator.get_state())


def fingerprint_of(*things: Any) -> str:
    """A text that differs where any of the things does."""
    digest = hashlib.sha256()
    for part in _parts(things):
        digest.update(part + b"\0")
    return digest.hexdigest()


def read_checkpoint(path: Path, key: str) -> dict[str, Any] | None:
    """What a training with that fingerprint left behind; None where there is no such thing."""
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{path} is not a checkpoint of this program, or is damaged. Move it away, or name another.")
    return found if found["fingerprint"] == key else None


def write_checkpoint(
    path: Path,
    key: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    best: dict[str, Tensor],
    fitted: Fitted,
) -> None:
    state = {
        "format": FORMAT,
        "fingerprint": key,
        "best": best,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
        "history": [asdict(epoch) for epoch in fitted.history],
        "unreadable": fitted.unreadable,
    }
    replace_whole(path, lambda file: torch.save(state, file))


def keep_epoch(
    path: Path, key: str, epochs: int, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> None:
    """Writes where a training stands after so many epochs."""
    state = {
        "format": FORMAT,
        "fingerprint": key,
        "epochs": epochs,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    replace_whole(path, lambda file: torch.save(state, file))


def take_up(
    path: Path, key: str, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> int:
    """The epochs that the training with that fingerprint has behind it; all is then as it was after them."""
    found = read_checkpoint(path, key)
    if not found:
        return 0
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    generator.set_state(found["generator"])
    return found["epochs"]


def _parts(value: Any) -> Iterator[bytes]:
    """Bytes that tell one thing from another, in a fixed order."""
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
        yield _told(repr(value))
    else:
        names = getattr(value, "paths", None) or getattr(value, "samples", None)
        yield _told(f"{type(value).__qualname__} {len(value) if hasattr(value, '__len__') else ''} {names}")


def _told(text: str) -> bytes:
    """Without the places in memory, which are others in the next process."""
    return re.sub(r" at 0x\w+", "", text).encode(errors="backslashreplace")
