"""Write files atomically, open regular files safely, and escape spreadsheet formulas."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from rarefish.errors import DataError

LARGE, SPARSE = 2**28, 64
"""A file of at least `LARGE` bytes is sparse if it occupies less than 1/`SPARSE` of its size on disk."""


def open_regular(path: Path | str) -> BinaryIO:
    """Opens a regular file for reading bytes; raises DataError for pipes, sockets, devices and folders.

    Reading those may never end. Large sparse files are also rejected: they need far more memory than disk space.
    """
    try:
        _check_kind(path, os.stat(path))  # before opening, since opening some devices has side effects
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        with ExitStack() as opened:
            opened.enter_context(file)
            _check_kind(path, os.fstat(file.fileno()))  # a pipe may have replaced the file since
            opened.pop_all()
    except DataError:
        raise
    except (OSError, ValueError) as error:  # ValueError is raised for a name with a null character
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
            f"{_shown(path)} has a size of {status.st_size:,} bytes, but only {stored:,} are stored on disk: it is "
            "mostly a hole. Copy the file again."
        )


def _shown(path: Path | str) -> str:
    """Returns the name with control characters escaped, so that it is safe to print."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(path))


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of a formula; some spreadsheets also accept full-width signs."""


def to_cell(value: object) -> object:
    """Returns the value to write into a spreadsheet cell: text that would run as a formula gets a leading apostrophe.

    Text that already looks like the result also gets one, so that `from_cell` restores every value.

    >>> to_cell("=1+1"), to_cell("'=1+1"), to_cell("owl"), to_cell(-0.5)
    ("'=1+1", "''=1+1", 'owl', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def from_cell(text: str) -> str:
    """Returns the text that was passed to `to_cell`.

    >>> from_cell("'=1+1"), from_cell("''=1+1"), from_cell("owl"), from_cell("'owl"), from_cell("-1")
    ('=1+1', "'=1+1", 'owl', "'owl", '-1')
    """
    return text[1:] if text.startswith("'") and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    return text.lstrip("'").startswith(FORMULA_STARTS)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    replace_whole(path, lambda file: file.write(text.encode()))


def replace_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file atomically, by writing a temporary file next to it, flushing it to disk and renaming it.

    The temporary file is always new and has an unpredictable name, so that nothing is written through a link.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with unfinished.open("xb") as file, _removed(unfinished):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            unfinished.replace(path)
    except OSError as error:
        raise OSError(
            error.errno, error.strerror, str(path)
        ) from error  # the error of a full disk does not name the file


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Removes the file when the block ends, if it still exists."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
