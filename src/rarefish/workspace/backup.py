"""Back up a workspace, even while others write to it. The copy is verified and then renamed to its final place."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rarefish.errors import ArgumentError, WorkspaceError
from rarefish.workspace.store import FILE, Store, explain_errors


@dataclass(frozen=True)
class Backup:
    """A finished backup."""

    folder: Path
    labels: int
    """Number of label rows: every answer and every undo."""
    models: int
    missing: tuple[str, ...]
    """Weight files that no longer exist in the workspace."""


def back_up(store: Store, target: Path) -> Backup:
    """Copies labels, rounds and weights to a folder that does not exist yet or is empty.

    The database is copied with SQLite's online backup, which gives a consistent state of everything committed so far.
    """
    target = target.absolute()
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise ArgumentError(f"{target} exists and is not an empty folder. Choose a new folder for the backup.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".unfinished", dir=target.parent))
        try:
            labels, weights = _copy_database(store, unfinished / FILE)
            missing = _copy_weights(weights, store.folder / "models", unfinished / "models")
            (unfinished / "exports").mkdir()
            shutil.copymode(store.folder, unfinished)
            _sync((unfinished / FILE, unfinished / "models", unfinished))
            unfinished.rename(target)
            _sync((target.parent,))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise WorkspaceError(f"Cannot write the backup {target}: {error.strerror or error}.") from error
    return Backup(target, labels, len(weights) - len(missing), missing)


def _copy_database(store: Store, path: Path) -> tuple[int, list[str]]:
    """Copies the database and returns its number of labels and the names of its weight files."""
    with explain_errors(path.parent), closing(sqlite3.connect(path, isolation_level=None)) as copy:
        with store.reading() as connection:
            connection.backup(copy)
        problems = [word for (word,) in copy.execute("PRAGMA integrity_check") if word != "ok"]
        if problems:
            raise WorkspaceError(
                f"{store.folder / FILE} is damaged: {' '.join(problems[0].split())}. Restore the latest backup."
            )
        (labels,) = copy.execute("SELECT count(*) FROM label").fetchone()
        return labels, [name for (name,) in copy.execute("SELECT DISTINCT weights FROM training ORDER BY weights")]


def _copy_weights(names: Iterable[str], source: Path, place: Path) -> tuple[str, ...]:
    """Copies the files and returns the names of those that do not exist."""
    place.mkdir()
    missing = []
    for name in names:
        if Path(name).name != name or not (source / name).is_file():
            missing.append(name)
            continue
        shutil.copy2(source / name, place / name)
        _sync((place / name,))
    return tuple(missing)


def _sync(paths: Iterable[Path]) -> None:
    """Flushes files and folders to disk."""
    for path in paths:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
