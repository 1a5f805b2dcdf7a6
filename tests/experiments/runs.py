"""Helpers for tests that run whole experiments on a few digits."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from rarefish.active_learning.records import Record, read_records
from rarefish.experiments.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
COMMAND = [
    sys.executable,
    "-m",
    "rarefish",
    "experiment",
    f"{Path(__file__).with_name('small.py')}:few",
    "--device",
    "cpu",
]


def everything(folder: Path) -> dict[str, list[Record]]:
    """All records of a run, without the seconds and the commit, which may change while the tests run."""
    return {
        path.name: [replace(record, select_s=0.0, train_s=0.0, commit="") for record in read_records(path)]
        for path in sorted((folder / "records").glob("*.jsonl"))
    }


def without_states(whole: Path, folder: Path, num_rounds: int) -> RunFolder:
    """As somebody might copy a run: settings and the records of some rounds, nothing else."""
    (folder / "records").mkdir(parents=True)
    shutil.copy(whole / "settings.json", folder)
    for path in (whole / "records").iterdir():
        lines = path.read_bytes().splitlines(keepends=True)[:num_rounds]
        (folder / "records" / path.name).write_bytes(b"".join(lines))
    return RunFolder(folder)
