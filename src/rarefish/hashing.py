"""Hashes of values and files, by which a run is known to be the same. Nothing here needs torch."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rarefish.errors import DataError
from rarefish.io import open_regular

AT_ONCE = 2**20
"""Bytes of a file that are in memory at a time."""


def digest(values: Iterable[object]) -> str:
    """A hash that changes with any of the values and with their order: bytes as they are, others as repr() has them."""
    whole = hashlib.sha256()
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        whole.update(len(content).to_bytes(8, "little"))
        whole.update(content)
    return whole.hexdigest()


def digest_files(paths: Sequence[Path], *, with_contents: bool = False) -> str:
    """A hash of names below the common folder, sizes and times of change; or of names and contents.

    A file that cannot be read counts as unreadable: it stops nothing.
    """
    names = [os.path.abspath(path) for path in paths]
    start = len(_common_folder(names))
    state = _content_of if with_contents else _state_of
    return digest(part for name in names for part in (name[start:], state(name)))


def digest_file(path: Path | str) -> str:
    """A hash of the file's content."""
    whole = hashlib.sha256()
    with open_regular(path) as file:
        while part := file.read(AT_ONCE):
            whole.update(part)
    return whole.hexdigest()


def _common_folder(names: Sequence[str]) -> str:
    """The longest folder that all names begin with; of sorted names, the first and the last differ most."""
    return os.path.commonpath([os.path.dirname(name) for name in (min(names), max(names))]) if names else ""


def _state_of(name: str) -> tuple[int, int] | str:
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return "unreadable"
    return status.st_size, status.st_mtime_ns


def _content_of(name: str) -> str:
    try:
        return digest_file(name)
    except (OSError, DataError):
        return "unreadable"
