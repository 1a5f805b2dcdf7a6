"""The folder of a run: settings, records per cell, and the states from which a killed run resumes.

RUN/settings.json          settings of the experiment, which are compared when the run is resumed
RUN/records/CELL.jsonl     one line per finished round, written last; a baseline has one line, round 0
RUN/states/CELL-rNN.pt     models and labels after round NN; only the latest is kept
RUN/starts/START.pt        initial networks
RUN/epochs/                checkpoints of unfinished training runs, and selections on image files; deleted afterward
RUN/snapshots/CELL-rNN.npz features and predictions on the test set, for t-SNE
"""

import fcntl
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from rarefish.active_learning.records import Record, read_records, read_settings, to_line
from rarefish.active_learning.resume import RoundFiles
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.settings import Cell, Experiment, differences, with_methods_of
from rarefish.io import replace_whole, write_whole


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, with methods to read and write its files."""

    folder: Path

    def records(self, cell: Cell) -> list[Record]:
        """Returns the finished rounds of a cell."""
        path = self._records(cell)
        return read_records(path) if path.exists() else []

    def num_finished(self) -> int:
        """Returns the number of finished rounds of all cells."""
        return sum(path.read_bytes().count(b"\n") for path in (self.folder / "records").glob("*.jsonl"))

    def finish(
        self, cell: Cell, record: Record, state: dict[str, Any] | None = None, snapshot: dict[str, Any] | None = None
    ) -> None:
        """Saves a finished round: first the state for the next round, and last the record that marks it as done.

        A baseline has a single record, round 0, and no state.
        """
        if snapshot:
            replace_whole(
                self.folder / "snapshots" / f"{cell.key}-r{record.round:02}.npz",
                lambda f: np.savez_compressed(f, **snapshot),
            )
        if state:
            _save(self._state(cell, record.round), state)
        with self._records(cell).open("ab+") as file:
            # Only one process writes the records of a cell, even if a worker outlives a killed parent.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            if whole.count(b"\n") != max(record.round - 1, 0):
                return
            file.truncate(len(whole))
            file.write(to_line(record).encode())
            file.flush()
            os.fsync(file.fileno())
        self._state(cell, record.round - 1).unlink(missing_ok=True)
        self.under_way(cell).clear()

    def has_state(self, cell: Cell, number: int) -> bool:
        """Returns whether the state after the given round is saved."""
        return self._state(cell, number).exists()

    def under_way(self, cell: Cell) -> RoundFiles:
        """Returns the files of the cell's unfinished round."""
        return RoundFiles(self.folder / "epochs", cell.key)

    def state(self, cell: Cell, number: int) -> dict[str, Any]:
        """Returns the state that `finish` saved after the given round."""
        return _load(self._state(cell, number))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the run; raises an error if another process has locked it or the folder contains something else."""
        if not (self.folder / "settings.json").exists() and any(p.name != ".lock" for p in self.folder.glob("*")):
            raise ArgumentError(f"{self.folder} is not empty and does not contain a run. Choose another folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArgumentError(
                    f"Another process is running the experiment in {self.folder}. Wait until it is done."
                ) from None
            for unfinished in self.folder.glob("*/*.part"):  # left by a killed process
                unfinished.unlink(missing_ok=True)
            yield

    def start_path(self, key: str) -> Path:
        """Returns the path of an initial network."""
        return self.folder / "starts" / f"{key}.pt"

    def save_start(self, key: str, weights: dict[str, Any]) -> None:
        """Saves an initial network and deletes the checkpoint of its pretraining."""
        _save(self.start_path(key), weights)
        self.pretraining_checkpoint(key).unlink(missing_ok=True)

    def pretraining_checkpoint(self, key: str) -> Path:
        """Returns the path where an unfinished pretraining is saved after each epoch."""
        return self.folder / "epochs" / f"{key}.pt"

    def load_start(self, key: str) -> dict[str, Any]:
        """Returns the weights of an initial network."""
        return _load(self.start_path(key))

    def _records(self, cell: Cell) -> Path:
        return self.folder / "records" / f"{cell.key}.jsonl"

    def _state(self, cell: Cell, number: int) -> Path:
        return self.folder / "states" / f"{cell.key}-r{number:02}.pt"


def open_run_folder(folder: Path, experiment: Experiment, data: str = "") -> RunFolder:
    """Creates or reopens the run in a folder; raises an error if its settings or data differ. Lock it first.

    `data` is the fingerprint of the dataset. It is not compared if the run was saved without one.
    """
    path, settings = folder / "settings.json", experiment.to_json()
    if path.exists():
        before = read_settings(folder)
        different = differences(before, settings)
        if data and before.get("data", data) != data:
            different.append(f"the images of {experiment.dataset} were different")
        has_records = any((folder / "records").glob("*.jsonl"))
        if different and has_records:
            raise ArgumentError(
                f"{folder} contains a run with other settings: {'; '.join(different)}. Choose another folder."
            )
        for part in ("starts", "epochs") if different else ():
            for made in (folder / part).glob("*.pt"):
                made.unlink()  # made with the other settings
        settings = with_methods_of(before, settings) if has_records else settings
    for part in ("records", "states", "starts", "epochs", "snapshots"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(settings | ({"data": data} if data else {}), indent=2))
    return RunFolder(folder)


def _save(path: Path, content: dict[str, Any]) -> None:
    """Saves the content atomically; first serializes it in memory, since torch would hide the error of a full disk."""
    made = io.BytesIO()
    torch.save(content, made)
    replace_whole(path, lambda file: file.write(made.getbuffer()))


def _load(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, UnpicklingError) as error:
        why = str(error).partition("\n")[0]  # the other lines are about torch versions
        raise DataError(f"{path} cannot be read: {why}. Remove the files of this cell to run it again.") from error
