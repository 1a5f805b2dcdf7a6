"""Opening a file never waits and never takes more memory than the file has on the disk."""

import os
import socket
from pathlib import Path

import pytest

from rarefish.errors import DataError
from rarefish.regular_files import open_regular


def test_a_file_and_a_link_to_it_are_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)
        server.bind("socket")
        for path in ("pipe", "socket", "/dev/zero"):
            with pytest.raises(DataError, match=f"{path} cannot be read: it is not a regular file"):
                open_regular(Path(path))
    with pytest.raises(DataError, match="it is a folder"):
        open_regular(tmp_path)
    with pytest.raises(DataError, match="none cannot be read: No such file or directory"):
        open_regular(tmp_path / "none")
    with pytest.raises(DataError, match=r"nul\\x00 cannot be read: .*null"):
        open_regular(tmp_path / "nul\0")


def test_a_file_that_is_a_hole_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DataError, match="claims 1,099,511,627,776 bytes, but only 0 are stored"):
        open_regular(tmp_path / "hole")
