"""The folder where a resumable selection keeps its plan and its finished shards. Nothing here needs torch.

A marker file inside says that rarefish made the folder. A folder without it belongs to somebody else and is refused, a
symbolic link is never followed, and only files with our own names are ever deleted.
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
"""What the folder is called beside the output of `rarefish select`, and in a workspace."""
MARKER = ".made-by-rarefish"
OWN_FILES = re.compile(r"(plan|[0-9a-f]{16}-\d+_\d+-\d+-of-\d+)\.pt(\.\d+-[0-9a-f]+\.part)?")
"""Names of plans and shards, and of what a killed process left of them."""


@dataclass(frozen=True)
class ResumeFolder:
    """A folder that rarefish makes, fills and removes by itself."""

    path: Path

    def check(self) -> None:
        """Complains about a folder, a file or a link in this place that rarefish did not make."""
        if self.path.is_symlink():
            raise ArgumentError(
                f"{self.path} is a symbolic link, and rarefish does not follow one to delete files. Remove the link, "
                "or give the folder that it points to."
            )
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ArgumentError(f"{self.path} is not a folder. Rename it, or give another folder.")
        # The marker is looked for after the listing: another process may be making the folder at this moment.
        if os.listdir(self.path) and not _is_file(self.path / MARKER):
            raise ArgumentError(
                f"{self.path} was not made by rarefish: it has no file {MARKER} and is not empty. Rename it, or give "
                "another folder."
            )

    def read(self, name: str) -> bytes | None:
        """The content of one of our files; None where there is none."""
        path = self.path / name
        return path.read_bytes() if _is_file(path) else None

    def write(self, name: str, content: bytes) -> None:
        """Writes one of our files whole or not at all; the folder and its marker are made where they are missing."""
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
                    with suppress(FileNotFoundError):  # another process clears the same folder
                        os.unlink(name, dir_fd=folder)

    def remove(self) -> None:
        """Deletes our files, then the folder if nothing else is in it."""
        self.clear()
        with self._opened() as folder:
            if folder is None:
                return
            if set(os.listdir(folder)) <= {MARKER}:
                with suppress(FileNotFoundError):
                    os.unlink(MARKER, dir_fd=folder)
        with suppress(OSError):  # another process removed it first, or put something in
            self.path.rmdir()

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The folder, opened without following a link; None where it is not there or not ours."""
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
    """Whether there is a regular file; a link to one does not count."""
    try:
        return stat.S_ISREG(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
