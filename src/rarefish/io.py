"""Files written whole or not at all."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
