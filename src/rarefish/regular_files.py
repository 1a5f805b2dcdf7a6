"""Files that are safe to open for reading: no pipes to wait for, and no holes that fill the memory."""

import os
import stat
from contextlib import ExitStack
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
