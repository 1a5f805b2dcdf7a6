"""SQLite connections to a workspace's file: one per thread, closed together, and reopened if the file was moved."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from rarefish.errors import WorkspaceError

PATIENCE_S = 30
"""Seconds to wait for another process to finish its transaction."""
CLOSING_S = 2
"""Seconds to wait on closing for readers in other processes, before the merging of the -wal is left to them."""

Files = tuple[tuple[int, int] | None, ...]
"""Device and inode of the database, its -wal and its -shm, or None for a file that does not exist."""


class Connection(sqlite3.Connection):
    """A connection that knows which files it has open."""

    files: Files = ()
    is_read_only: bool = False


def connect(path: Path, mode: str = "rw") -> Connection:
    """Opens a connection, which is read-only if the file cannot be written. The mode "rwc" creates the file."""
    is_read_only = mode == "rw" and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    if is_read_only:
        # Without a -wal, nobody is writing, so SQLite does not need a -shm, which it could not create here.
        mode = "ro" if wal_bytes(path) else "ro&immutable=1"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    try:
        connection.is_read_only = is_read_only
        connection.row_factory = sqlite3.Row
        if not is_read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # an acknowledged label survives a power failure
        connection.execute("PRAGMA foreign_keys = ON")
        connection.files = files_at(path)
    except BaseException:
        connection.close()
        raise
    return connection


def files_at(path: Path) -> Files:
    """Returns the files that currently are the database, its -wal and its -shm at this path."""
    found = []
    for suffix in ("", "-wal", "-shm"):
        try:
            status = os.stat(f"{path}{suffix}")
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def wal_bytes(path: Path) -> int:
    """Returns the size of the -wal, which holds committed pages until they are merged into the database."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


class Connections:
    """The connections of this process to one database.

    SQLite keeps writing to a file that was moved, deleted or replaced. Therefore, the files at the path are compared
    with the open ones before each transaction and, with `check`, after each commit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inherited: list[object] = []
        self._begin()

    def _begin(self) -> None:
        self._pid, self._in_use = os.getpid(), 0
        self._changed = threading.Condition()
        self._forget()

    def _forget(self) -> None:
        self._own, self._open = threading.local(), WeakSet[Connection]()
        self._first: Connection | None = None  # all others must have the same files open

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """Yields this thread's connection, which is not closed until the block ends."""
        if self._pid != os.getpid():  # a connection must be neither used nor closed across a fork
            self._inherited += [self._own, *self._open]
            self._begin()
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back()

    def own(self) -> Connection:
        """Returns this thread's connection; opens it if necessary."""
        connection = getattr(self._own, "connection", None)
        if connection is None:
            self._own.connection = connection = connect(self.path)
            self._open.add(connection)
            self._first = self._first or connection
        return connection

    def check(self, connection: Connection) -> None:
        """Raises WorkspaceError if the files at the path are not those that the connection has open."""
        if self._has_moved(connection):
            raise WorkspaceError(self._what_happened(connection))

    def close(self) -> None:
        """Merges the -wal into the database and closes the connections of all threads; the next use opens new ones."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._in_use, PATIENCE_S)
            if self._first and not self._first.is_read_only:
                with suppress(sqlite3.Error):  # what cannot be merged now stays safe in the -wal
                    self._first.execute(f"PRAGMA busy_timeout = {CLOSING_S * 1000}")
                    self._first.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._close_all()

    def _has_moved(self, connection: Connection) -> bool:
        there = files_at(self.path)
        return connection.files != there or (None in there and not connection.is_read_only)

    def _take(self) -> Connection:
        with self._changed:
            if self._first and self._has_moved(self._first):
                self._reopen(self._first)
            connection = self.own()
            self.check(connection)
            self._in_use += 1
            return connection

    def _give_back(self) -> None:
        with self._changed:
            self._in_use -= 1
            self._changed.notify_all()

    def _reopen(self, first: Connection) -> None:
        """Closes all connections, unless something committed through them could be lost.

        A file that replaced the open one is opened only if the old -wal is no longer next to it, because SQLite would
        apply that -wal to the new file.
        """
        if not self._changed.wait_for(lambda: not self._in_use, PATIENCE_S):
            raise WorkspaceError(self._what_happened(first))
        if first is not self._first:
            return  # another thread closed them while this one was waiting
        there = files_at(self.path)
        if there[0] == first.files[0]:
            if not first.is_read_only and first.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise WorkspaceError(self._what_happened(first))
        elif there[0] is None or set(there[1:]) & set(first.files[1:]) or not self._has_all(first):
            raise WorkspaceError(self._what_happened(first))
        self._close_all()

    def _close_all(self) -> None:
        for connection in list(self._open):
            connection.close()
        self._forget()

    def _has_all(self, connection: Connection) -> bool:
        """Returns whether the file at the path is a copy of the open one with all labels."""
        other = connect(self.path)
        try:
            identity = "SELECT value FROM setting WHERE name = 'identity'"
            last = "SELECT id, ticket FROM label ORDER BY id DESC LIMIT 1"
            mine = [connection.execute(query).fetchone() for query in (identity, last)]
            if mine[0] is None or other.execute(identity).fetchone() != mine[0]:
                return False
            same = "SELECT 1 FROM label WHERE id = ? AND ticket = ?"
            return mine[1] is None or other.execute(same, tuple(mine[1])).fetchone() is not None
        finally:
            other.close()

    def _what_happened(self, connection: Connection) -> str:
        there = files_at(self.path)
        if there[0] is None:
            return f"{self.path} was moved or removed while it was in use. Nothing is saved until it is back."
        if there[0] != connection.files[0]:
            return (
                f"While {self.path} was in use, it was replaced by a file without its labels. Nothing is saved until "
                "the original file is back. If the new file is the right one, restart this process."
            )
        return (
            f"{self.path}-wal or {self.path.name}-shm was removed while it was in use, and others are still reading. "
            "Nothing is saved until its labels are merged. Stop all processes that use the workspace and restart them."
        )
