"""Files of an unfinished round, from which a killed run resumes: its choice and its training checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rarefish.acquisitions.interface import Choice
from rarefish.data.reader import Data
from rarefish.io import replace_whole
from rarefish.selection import Selection

SELECTION_TENSORS = (
    *("indices", "similarities", "centers", "pseudo_labels"),
    *("class_probabilities", "center_predictions"),
)


@dataclass(frozen=True)
class RoundFiles:
    """The files of the unfinished round of one task."""

    folder: Path
    name: str
    """Prefix of the file names."""

    def checkpoint(self, number: int, member: int) -> Path:
        """Returns the path of the training checkpoint of an ensemble member in the given round."""
        return self.folder / f"{self.name}-r{number:02}-m{member}.pt"

    def save_choice(self, number: int, taken: Sequence[int], choice: Choice, seconds: float) -> None:
        """Writes the choice of a round, the indices taken before it, and the seconds it took."""
        selection = choice.why
        saved: dict[str, Any] = {"taken": list(taken), "indices": choice.indices, "passes": choice.passes}
        if selection is not None:
            saved["why"] = {
                **{name: getattr(selection, name).cpu() for name in SELECTION_TENSORS},
                "layers": list(selection.layers),
                "num_failures": selection.num_failures,
                "pool_mix": selection.pool_mix,
                "pool_mix_interval": selection.pool_mix_interval,
                "notes": list(selection.notes),
                "unreadable": dict(selection.unreadable),
            }
        replace_whole(self._choice_path(number), lambda file: torch.save({**saved, "seconds": seconds}, file))

    def load_choice(self, number: int, taken: Sequence[int]) -> dict[str, Any] | None:
        """Returns what `save_choice` wrote, or None if there is no file or it was written after other choices."""
        path = self._choice_path(number)
        saved = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
        return saved if saved and saved["taken"] == list(taken) else None

    def clear(self) -> None:
        """Deletes the files once the round is finished."""
        for path in self.folder.glob(f"{self.name}-r*.pt"):
            path.unlink(missing_ok=True)

    def _choice_path(self, number: int) -> Path:
        return self.folder / f"{self.name}-r{number:02}-choice.pt"


def to_choice(saved: dict[str, Any], pool: Data, validation: Data) -> Choice:
    """Returns the choice rebuilt from the result of `load_choice` for these datasets."""
    if "why" not in saved:
        return Choice(saved["indices"], saved["passes"])
    fields: dict[str, Any] = {**saved["why"], **{name: tuple(saved["why"][name]) for name in ("layers", "notes")}}
    return Choice(saved["indices"], saved["passes"], Selection(**fields, pool=pool, validation=validation))
