"""Export targets, which are written to a temporary name and then renamed; only earlier exports are ever replaced."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.export_items import Item
from rarefish.workspace.indexing import show

MARKER_FILE = "rarefish.json"
"""Name of the file that identifies a folder as an export of rarefish."""
HEAD_BYTES = 4096
"""How many bytes at the start of a file are searched for the marker."""


@contextmanager
def atomic_output(target: Path, marker: bytes) -> Iterator[Path]:
    """Yields a temporary path that is renamed to `target` when the block ends without an error.

    An earlier export at `target` is kept as NAME~. If anything else exists there, an error is raised.

    Args:
        target: File or folder to create.
        marker: Bytes near the start of every file of this format. A folder is identified by `MARKER_FILE` instead.
    """
    if not target.name:
        raise ArgumentError(f"Cannot write to {target}. Give the path of a file or folder.")
    backup = target.with_name(f"{target.name}~")
    for path in (target, backup) if os.path.lexists(target) else ():
        if os.path.lexists(path) and not (_is_empty(path) or _is_ours(path, marker)):
            raise ArgumentError(f"{path} exists and was not exported by rarefish. Choose another path, or remove it.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        _fsync(temporary)
        if os.path.lexists(target):
            _remove(backup)
            target.rename(backup)
            if _is_empty(backup):
                _remove(backup)
        temporary.rename(target)
    except OSError as error:
        raise DataError(f"Cannot write {target}: {error.strerror or error}. Nothing was changed.") from error
    finally:
        _remove(temporary)


def link_or_copy(item: Item, target: Path) -> None:
    """Creates `target` as a hard link to the image's file, or as a copy if it cannot be linked."""
    try:
        os.link(os.path.realpath(item.file), target)
    except OSError:
        try:
            shutil.copyfile(item.file, os.fsencode(target))
        except FileNotFoundError as error:
            raise DataError(
                f"{show(item.file)} does not exist anymore. Restore it, or index the pool again."
            ) from error


def _is_empty(target: Path) -> bool:
    if target.is_symlink():
        return False
    return not any(target.iterdir()) if target.is_dir() else target.is_file() and not target.stat().st_size


def _is_ours(target: Path, marker: bytes) -> bool:
    if target.is_symlink():
        return False
    if target.is_dir():
        return (target / MARKER_FILE).is_file()
    with target.open("rb") as file:
        return bool(marker) and marker in file.read(HEAD_BYTES)


def _fsync(path: Path) -> None:
    """Flushes the files that we wrote to disk; skips images in subfolders, which are links or copies."""
    for file in [path] if path.is_file() else path.glob("*.*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
