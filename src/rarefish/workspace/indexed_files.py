"""Look up indexed images by id, content hash or path, and read their files if they have not changed."""

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rarefish.workspace.indexing import fingerprint
from rarefish.workspace.store import Store

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""Opening must not block if a named pipe has replaced a file."""


@dataclass(frozen=True)
class IndexedFile:
    """A file's path, and its content hash and size when it was indexed."""

    path: bytes
    hash: str
    num_bytes: int


def read_indexed(path: bytes | Path, num_bytes: int, hash_: str) -> bytes | None:
    """Returns the content of a file, or None if it is not the indexed one; raises OSError if it cannot be read."""
    descriptor = os.open(path, FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != num_bytes:  # reading from a pipe or device could block
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read()
    return content if fingerprint(content) == hash_ else None


def has_changed(path: Path, num_bytes: int, modified: int, hash_: str, deep: bool = False) -> bool:
    """Returns whether a file is not the one that was indexed; reads it only if its time differs or with `deep`."""
    status = path.stat()
    if status.st_size != num_bytes:
        return True
    return (deep or status.st_mtime_ns != modified) and read_indexed(path, num_bytes, hash_) is None


def find_shown(store: Store, image: int) -> IndexedFile | None:
    """Returns the file of a picked or validation image, or None for any other image, which must not be shown."""
    with store.reading() as connection:
        row = connection.execute(
            "SELECT part, path, hash, bytes FROM image WHERE id = ? "
            "AND (part = 'validation' OR EXISTS (SELECT 1 FROM pick WHERE pick.image = image.id))",
            (image,),
        ).fetchone()
    if row is None:
        return None
    root = os.fsencode(store.settings()[f"{row['part']}_root"])
    return IndexedFile(os.path.join(root, row["path"]), row["hash"], row["bytes"])


def picked_paths(connection: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Yields the id and path of every image that a round has picked."""
    yield from connection.execute("SELECT image, path FROM pick JOIN image ON image.id = pick.image")


def is_picked(connection: sqlite3.Connection, image: int) -> bool:
    """Returns whether a round has picked this image."""
    return connection.execute("SELECT 1 FROM pick WHERE image = ?", (image,)).fetchone() is not None


def pool_hash(connection: sqlite3.Connection, image: int) -> str | None:
    """Returns the content hash of a pool image, or None if the pool has no image with this id."""
    row = connection.execute("SELECT hash FROM image WHERE id = ? AND part = 'pool'", (image,)).fetchone()
    return row and row["hash"]


def find_by_hash(connection: sqlite3.Connection, hash_: str) -> int | None:
    """Returns the pool image with this content, preferably a copy in use, or None if there is none."""
    row = connection.execute(
        "SELECT id FROM image WHERE hash = ? AND part = 'pool' ORDER BY state = 'ready' DESC, id", (hash_,)
    ).fetchone()
    return row and row["id"]


def find_by_paths(connection: sqlite3.Connection, paths: Iterable[bytes]) -> set[int]:
    """Returns the pool images at any of these paths, which are relative to the pool's folder."""
    query = "SELECT id FROM image WHERE part = 'pool' AND path = ?"
    return {row["id"] for path in paths for row in connection.execute(query, (path,))}


def content_hashes(connection: sqlite3.Connection, images: Iterable[int]) -> set[str]:
    """Returns the content hashes of these images; copies of an image have the same hash."""
    query = "SELECT hash FROM image WHERE id = ?"
    return {row["hash"] for image in images for row in connection.execute(query, (image,))}
