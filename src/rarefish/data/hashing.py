"""Hash values and files, to detect whether the inputs of a run have changed. Does not import torch."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rarefish.errors import DataError
from rarefish.io import open_regular

CHUNK_SIZE = 2**20
"""Number of bytes read at a time."""


def digest(values: Iterable[object]) -> str:
    """Returns a hash of the values in order; bytes are hashed as they are, other values by their repr()."""
    whole = hashlib.sha256()
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        whole.update(len(content).to_bytes(8, "little"))
        whole.update(content)
    return whole.hexdigest()


def content_id(content: bytes) -> str:
    """Returns the hash that identifies an image by its content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def content_id_of_file(path: Path | str) -> str:
    """Returns the `content_id` of a file, or an empty string if it cannot be read."""
    try:
        with open_regular(path) as file:
            return content_id(file.read())
    except (OSError, DataError):
        return ""


def digest_files(paths: Sequence[Path], *, with_contents: bool = False) -> str:
    """Returns a hash of the files' names below their common folder, sizes and modification times.

    With `with_contents`, contents are hashed instead of sizes and times. An unreadable file is hashed as unreadable
    and raises no error.
    """
    names = [os.path.abspath(path) for path in paths]
    start = len(_common_folder(names))
    state = _content_of if with_contents else _state_of
    return digest(part for name in names for part in (name[start:], state(name)))


def digest_file(path: Path | str) -> str:
    """Returns a hash of the file's content."""
    whole = hashlib.sha256()
    with open_regular(path) as file:
        while part := file.read(CHUNK_SIZE):
            whole.update(part)
    return whole.hexdigest()


def _common_folder(names: Sequence[str]) -> str:
    """Returns the deepest folder that contains all names, found from the smallest and the largest name."""
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
