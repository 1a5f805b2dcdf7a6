"""Files and folders that are never seen half done, and never take the place of somebody else's."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.items import Item
from rarefish.workspace.indexing import show

MARK = "rarefish.json"
"""A file that says of a folder that it is ours."""
HEAD = 4096


@contextmanager
def finished(target: Path, mark: bytes) -> Iterator[Path]:
    """A place to write to; it becomes the target when all is written. An earlier export stays beside it as NAME~.

    `mark` stands at the head of every file of this form; a folder of ours holds the file rarefish.json.
    """
    if not target.name:
        raise ArgumentError(f"{target} cannot be written to. Name a file or folder of its own.")
    before = target.with_name(f"{target.name}~")
    for place in (target, before) if os.path.lexists(target) else ():
        if os.path.lexists(place) and not (_is_empty(place) or _is_ours(place, mark)):
            raise ArgumentError(f"{place} is there and was not exported by rarefish. Name another, or remove it.")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove(unfinished)
        yield unfinished
        _force(unfinished)
        if os.path.lexists(target):
            _remove(before)
            target.rename(before)
            if _is_empty(before):
                _remove(before)
        unfinished.rename(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}. Nothing was changed.") from error
    finally:
        _remove(unfinished)


def lay(item: Item, place: Path) -> None:
    """The image's file at that place: linked where that can be, else copied."""
    try:
        os.link(os.path.realpath(item.file), place)
    except OSError:
        try:
            shutil.copyfile(item.file, os.fsencode(place))
        except FileNotFoundError as error:
            raise DataError(f"{show(item.file)} is gone. Put it back, or index anew.") from error


def _is_empty(target: Path) -> bool:
    if target.is_symlink():
        return False
    return not any(target.iterdir()) if target.is_dir() else target.is_file() and not target.stat().st_size


def _is_ours(target: Path, mark: bytes) -> bool:
    if target.is_symlink():
        return False
    if target.is_dir():
        return (target / MARK).is_file()
    with target.open("rb") as file:
        return bool(mark) and mark in file.read(HEAD)


def _force(path: Path) -> None:
    """Files of our own making are on disk before they get their name."""
    for file in [path] if path.is_file() else path.glob("*.*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
