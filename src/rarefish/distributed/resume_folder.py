"""The folder where a resumable selection keeps its plan and its finished shards.

A marker file shows that rarefish made the folder. A folder without it is refused, a symbolic link is never followed,
and only files with rarefish's own names are deleted. This module does not import torch.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rarefish.errors import ArgumentError
from rarefish.io import replace_whole

NAME = ".rarefish-resume"
"""Name of the folder, next to the output of `rarefish select` and in a workspace."""
MARKER = ".made-by-rarefish"
OWN_FILES = re.compile(r"(plan|[0-9a-f]{16}-\d+_\d+-\d+-of-\d+)\.pt(\.\d+-[0-9a-f]+\.part)?")
"""Names of plans and shards, and of the temporary files that a killed process left."""


@dataclass(frozen=True)
class ResumeFolder:
    """A folder that rarefish creates, fills and removes."""

    path: Path

    def check(self) -> None:
        """Raises an error if the path is a folder, a file or a link that rarefish did not make."""
        if self.path.is_symlink():
            raise ArgumentError(
                f"{self.path} is a symbolic link, and rarefish does not delete files through one. Remove the link, "
                "or give the folder that it points to."
            )
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ArgumentError(f"{self.path} is not a folder. Rename it, or give another folder.")
        # The marker is checked after the listing: another process may be creating the folder at this moment.
        if os.listdir(self.path) and not _is_file(self.path / MARKER):
            raise ArgumentError(
                f"{self.path} was not made by rarefish: it has no file {MARKER} and is not empty. Rename it, or give "
                "another folder."
            )

    def read(self, name: str) -> bytes | None:
        """The content of one of our files, or None if it does not exist."""
        path = self.path / name
        return path.read_bytes() if _is_file(path) else None

    def write(self, name: str, content: bytes) -> None:
        """Writes one of our files atomically; creates the folder and its marker if they are missing."""
        assert OWN_FILES.fullmatch(name), f"{name} would never be deleted"
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (self.path / MARKER).open("xb").close()
        replace_whole(self.path / name, lambda file: file.write(content))

    def clear(self) -> None:
        """Deletes our plans and shards."""
        with self._opened() as folder:
            for name in os.listdir(folder) if folder is not None else ():
                if OWN_FILES.fullmatch(name) and _is_file(name, folder):
                    with suppress(FileNotFoundError):  # another process is clearing the same folder
                        os.unlink(name, dir_fd=folder)

    def remove(self) -> None:
        """Deletes our files, then the folder if it is empty."""
        self.clear()
        with self._opened() as folder:
            if folder is None:
                return
            if set(os.listdir(folder)) <= {MARKER}:
                with suppress(FileNotFoundError):
                    os.unlink(MARKER, dir_fd=folder)
        with suppress(OSError):  # another process removed it first, or wrote a file
            self.path.rmdir()

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The folder, opened without following a link; None if it does not exist or is not ours."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            yield None
            return
        try:
            yield folder if _is_file(MARKER, folder) else None
        finally:
            os.close(folder)


def _is_file(path: Path | str, folder: int | None = None) -> bool:
    """Whether the path is a regular file; a link to one does not count."""
    try:
        return stat.S_ISREG(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
