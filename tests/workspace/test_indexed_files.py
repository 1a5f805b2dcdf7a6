"""Indexed files: looked up in the workspace, and read only where they are still the files that were indexed."""

import os
from pathlib import Path

import pytest

from rarefish.workspace.indexed_files import (
    content_hashes,
    find_by_hash,
    find_by_paths,
    find_shown,
    has_changed,
    is_picked,
    picked_paths,
    pool_hash,
    read_indexed,
)
from rarefish.workspace.indexing import fingerprint
from tests.workspaces import make_workspace


def test_only_the_file_that_was_indexed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"content")
    indexed = (7, fingerprint(b"content"))
    assert read_indexed(path, *indexed) == read_indexed(os.fsencode(path), *indexed) == b"content"
    for other in (b"CONTENT", b"longer content", b""):
        path.write_bytes(other)
        assert read_indexed(path, *indexed) is None
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_indexed(path, *indexed)
    os.mkfifo(path)
    assert read_indexed(path, 0, fingerprint(b"")) is None
    path.unlink()
    path.mkdir()
    assert read_indexed(path, path.stat().st_size, indexed[1]) is None


def test_a_file_is_read_only_if_its_time_differs_or_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"content")
    status = path.stat()
    size, modified, hash_ = status.st_size, status.st_mtime_ns, fingerprint(b"content")
    os.utime(path, (1, 1))
    assert not has_changed(path, size, modified, hash_), "only its time differs"
    path.write_bytes(b"CONTENT")
    assert has_changed(path, size, modified, hash_)
    os.utime(path, ns=(modified, modified))
    assert not has_changed(path, size, modified, hash_) and has_changed(path, size, modified, hash_, deep=True)
    path.write_bytes(b"more content")
    assert has_changed(path, size, modified, hash_)


def test_images_are_found_by_id_hash_and_path(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=1)
    with store.reading() as connection:
        ((picked, path),) = picked_paths(connection)
        hash_ = pool_hash(connection, picked)
        assert hash_ is not None and content_hashes(connection, [picked]) == {hash_}
        assert find_by_hash(connection, hash_) == picked and find_by_paths(connection, [path, b"none"]) == {picked}
        assert is_picked(connection, picked) and not is_picked(connection, picked + 1)
        (trusted,) = connection.execute("SELECT min(id) FROM image WHERE part = 'validation'").fetchone()
        assert pool_hash(connection, trusted) is None and find_by_hash(connection, "0") is None
    shown = find_shown(store, picked)
    assert shown is not None and shown.hash == hash_ and shown.path == os.fsencode(tmp_path / "pool") + b"/" + path
    assert find_shown(store, trusted) is not None and find_shown(store, picked + 1) is None
