"""Files written whole or not at all."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from rarefish.errors import DataError

LARGE, SPARSE = 2**28, 64
"""A file of at least so many bytes that takes a share this small of the disk is mostly a hole."""


def open_regular(path: Path | str) -> BinaryIO:
    """The file, opened for reading bytes; a pipe, socket, device or folder is refused, since reading it may never end.

    A file that is mostly a hole is refused too: it would take far more memory than it takes on the disk.
    """
    try:
        _check_kind(path, os.stat(path))  # before it is opened: opening some devices has effects
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        with ExitStack() as opened:
            opened.enter_context(file)
            _check_kind(path, os.fstat(file.fileno()))  # a pipe may have taken the file's place since
            opened.pop_all()
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{_shown(path)} cannot be read: {reason}.") from error
    return file


def _check_kind(path: Path | str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise DataError(f"{_shown(path)} cannot be read: it is {kind}.")
    stored = status.st_blocks * 512
    if status.st_size >= LARGE and stored * SPARSE < status.st_size:
        raise DataError(
            f"{_shown(path)} claims {status.st_size:,} bytes, but only {stored:,} are stored: it is mostly a hole. "
            "Copy the file again."
        )


def _shown(path: Path | str) -> str:
    """The name without anything that a terminal could act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(path))


STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Full-width signs count for some spreadsheets as well."""


def to_cell(value: object) -> object:
    """The value as it is written: text that would be a formula, or that looks like such text written by us, is marked.

    >>> to_cell("=1+1"), to_cell("'=1+1"), to_cell("owl"), to_cell(-0.5)
    ("'=1+1", "''=1+1", 'owl', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def from_cell(text: str) -> str:
    """The text that `to_cell` was given.

    >>> from_cell("'=1+1"), from_cell("''=1+1"), from_cell("owl"), from_cell("'owl"), from_cell("-1")
    ('=1+1', "'=1+1", 'owl', "'owl", '-1')
    """
    return text[1:] if text.startswith("'") and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    return text.lstrip("'").startswith(STARTS)


def write_whole(path: Path, text: str) -> None:
    """Writes a text that is never seen half done."""
    replace_whole(path, lambda file: file.write(text.encode()))


def replace_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A file that is never seen half done: a temporary one beside it is written, forced to disk and renamed.

    The temporary file is always a new one with a name nobody can foresee, so that nothing is written through a link.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with unfinished.open("xb") as file, _removed(unfinished):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            unfinished.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not say which file


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Removes the file in the end, if it is still there."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
