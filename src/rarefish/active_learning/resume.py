"""A round under way, on disk: what it chose, and where its trainings stand. A killed run goes on from there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rarefish.acquisitions import Choice
from rarefish.data.reader import Data
from rarefish.io import replace_whole
from rarefish.selection import Selection

REASONS = ("indices", "similarities", "centers", "pseudo_labels")


@dataclass(frozen=True)
class UnderWay:
    """Files of one task's rounds."""

    folder: Path
    name: str
    """What the files' names begin with."""

    def training(self, number: int, member: int) -> Path:
        """Where a member's training in that round is kept, epoch by epoch."""
        return self.folder / f"{self.name}-r{number:02}-m{member}.pt"

    def keep_choice(self, number: int, taken: Sequence[int], choice: Choice, seconds: float) -> None:
        """Writes what a round chose after the `taken` ones, and how long that took."""
        why = choice.why
        kept: dict[str, Any] = {"taken": list(taken), "indices": choice.indices, "passes": choice.passes}
        if why is not None:
            kept["why"] = {
                **{name: getattr(why, name).cpu() for name in REASONS},
                "layers": list(why.layers),
                "num_failures": why.num_failures,
                "notes": list(why.notes),
                "unreadable": dict(why.unreadable),
            }
        replace_whole(self._choice(number), lambda file: torch.save({**kept, "seconds": seconds}, file))

    def read_choice(self, number: int, taken: Sequence[int]) -> dict[str, Any] | None:
        """What `keep_choice` wrote; None where that is not there, or came after others."""
        path = self._choice(number)
        kept = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
        return kept if kept and kept["taken"] == list(taken) else None

    def clear(self) -> None:
        """Removes all that finished rounds do not need."""
        for path in self.folder.glob(f"{self.name}-r*.pt"):
            path.unlink(missing_ok=True)

    def _choice(self, number: int) -> Path:
        return self.folder / f"{self.name}-r{number:02}-choice.pt"


def to_choice(kept: dict[str, Any], pool: Data, validation: Data) -> Choice:
    """The choice that `read_choice` found, among these data sets."""
    if "why" not in kept:
        return Choice(kept["indices"], kept["passes"])
    why: dict[str, Any] = {**kept["why"], **{name: tuple(kept["why"][name]) for name in ("layers", "notes")}}
    return Choice(kept["indices"], kept["passes"], Selection(**why, pool=pool, validation=validation))
