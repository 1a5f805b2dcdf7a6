"""The folder where a resumable selection keeps its plan and its finished shards.

A marker file shows that rarefish created the folder. A folder without it is rejected, symbolic links are never
followed, and only files whose names come from rarefish are deleted. Does not import torch.
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
"""Names of plans and shards, and of temporary files left by a killed process."""


@dataclass(frozen=True)
class ResumeFolder:
    """A folder that rarefish creates, fills and removes."""

    path: Path

    def check(self) -> None:
        """Raises an error if the path is a folder, a file or a link that rarefish did not create."""
        if self.path.is_symlink():
            raise ArgumentError(
                f"{self.path} is a symbolic link, and rarefish does not delete files through links. Remove the link, "
                "or use the folder to which it points."
            )
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ArgumentError(f"{self.path} is not a folder. Rename it, or choose another folder.")
        # Check the marker after listing, because another process may be creating the folder at this moment.
        if os.listdir(self.path) and not _is_file(self.path / MARKER):
            raise ArgumentError(
                f"{self.path} was not created by rarefish: it has no file {MARKER} and is not empty. Rename it, or "
                "choose another folder."
            )

    def read(self, name: str) -> bytes | None:
        """Returns the content of one of rarefish's files, or None if it does not exist."""
        path = self.path / name
        return path.read_bytes() if _is_file(path) else None

    def write(self, name: str, content: bytes) -> None:
        """Writes one of rarefish's files atomically; creates the folder and its marker if they are missing."""
        assert OWN_FILES.fullmatch(name), f"{name} would never be deleted"
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (self.path / MARKER).open("xb").close()
        replace_whole(self.path / name, lambda file: file.write(content))

    def clear(self) -> None:
        """Deletes the plans and shards."""
        with self._opened() as folder:
            for name in os.listdir(folder) if folder is not None else ():
                if OWN_FILES.fullmatch(name) and _is_file(name, folder):
                    with suppress(FileNotFoundError):  # another process is clearing the same folder
                        os.unlink(name, dir_fd=folder)

    def remove(self) -> None:
        """Deletes rarefish's files, and then the folder if it is empty."""
        self.clear()
        with self._opened() as folder:
            if folder is None:
                return
            if set(os.listdir(folder)) <= {MARKER}:
                with suppress(FileNotFoundError):
                    os.unlink(MARKER, dir_fd=folder)
        with suppress(OSError):  # another process has removed it or written a file
            self.path.rmdir()

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Opens the folder without following links; yields None if it does not exist or rarefish did not create it."""
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
    """Returns whether the path is a regular file; links to files do not count."""
    try:
        return stat.S_ISREG(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
