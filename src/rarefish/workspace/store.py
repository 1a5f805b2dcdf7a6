"""A workspace's database: one SQLite file that any number of processes read and write in transactions."""

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from rarefish.errors import ArgumentError, WorkspaceError, list_some
from rarefish.workspace.connections import Connections, connect

FILE = "rarefish.db"
VERSION = 2
"""Version of the schema, stored as `user_version`. Workspaces of other versions are not opened."""


@dataclass(frozen=True)
class Store:
    """An existing workspace. Each thread gets a connection when it needs one."""

    folder: Path
    _connections: Connections = field(repr=False, compare=False)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Opens a read transaction, which has a consistent view of the database."""
        with explain_errors(self.folder), self._connections.borrow() as connection, _transaction(connection, "BEGIN"):
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Opens a write transaction, which is committed and on disk at the workspace's path when the block ends."""
        with explain_errors(self.folder), self._connections.borrow() as connection:
            with _transaction(connection, "BEGIN IMMEDIATE"):
                yield connection
            self._connections.check(connection)

    def checkpoint(self) -> int:
        """Merges the write-ahead log into rarefish.db; returns how many pages remain because others are reading."""
        with explain_errors(self.folder), self._connections.borrow() as connection:
            if connection.is_read_only:
                return 0
            _, pages, merged = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return max(0, pages - merged)

    def close(self) -> None:
        """Merges the write-ahead log into rarefish.db and closes it; the next use opens it again."""
        self._connections.close()

    def has_wal(self) -> bool:
        """Returns whether a write-ahead log exists; if so, rarefish.db alone may lack the latest labels."""
        return (self.folder / f"{FILE}-wal").exists()

    def settings(self) -> dict[str, Any]:
        """Returns all settings by name."""
        with self.reading() as connection:
            return {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM setting")}

    def set(self, **values: object) -> None:
        """Stores settings; values must be serializable as JSON."""
        with self.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO setting VALUES (?, ?)", [(name, json.dumps(v)) for name, v in values.items()]
            )

    def identity(self) -> str:
        """Returns the random id of this workspace, which keeps open pages from sending answers to another workspace."""
        with self.writing() as connection:
            random_name = json.dumps(secrets.token_hex(8))
            connection.execute("INSERT OR IGNORE INTO setting VALUES ('identity', ?)", (random_name,))
        return self.settings()["identity"]

    def classes(self) -> list[str]:
        """Returns the class names in the order of the model's outputs."""
        with self.reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM class ORDER BY number")]

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Holds a lock on one kind of work, such as "training"; it is released even if the process is killed."""
        with _open_lock(self.folder / f".{what}.lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WorkspaceError(f"Another process is {what} in {self.folder}. Wait until it is done.") from error
            yield


def _open_lock(path: Path) -> IO[bytes]:
    """Opens the lock file, or creates it. Does not truncate existing files or follow links."""
    try:
        return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "r+b", buffering=0)
    except OSError as error:
        if not path.is_symlink():
            raise
        raise WorkspaceError(
            f"{path} is a symbolic link, but a lock must be a regular file. Remove the link."
        ) from error


def create_store(folder: Path, classes: Sequence[str]) -> Store:
    """Creates a workspace, or opens an existing one with the same classes."""
    check_classes(classes)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("models", "exports"):
        (folder / name).mkdir(exist_ok=True)
    with (
        explain_errors(folder),
        closing(connect(folder / FILE, "rwc")) as connection,
        _transaction(connection, "BEGIN IMMEDIATE"),
    ):
        if not _version(connection):
            for statement in _statements((Path(__file__).with_name("schema.sql")).read_text(encoding="utf-8")):
                connection.execute(statement)
            connection.executemany("INSERT INTO class VALUES (?, ?)", list(enumerate(classes)))
            connection.execute(f"PRAGMA user_version = {VERSION}")
    store = open_store(folder)
    if store.classes() != list(classes):
        raise WorkspaceError(
            f"{folder} is a workspace with other classes: {list_some(store.classes())}. Use these or another folder."
        )
    return store


def open_store(folder: Path) -> Store:
    """Opens the workspace in this folder."""
    if not (folder / FILE).exists():
        raise WorkspaceError(
            f"{folder} is not a workspace. Create one with: rarefish init {folder} --pool … --validation …"
        )
    store = Store(folder, Connections(folder / FILE))
    with explain_errors(folder):
        version = _version(store._connections.own())
    if version == 0:
        raise WorkspaceError(
            f"{folder} is incomplete, because the creation of the workspace was interrupted. Run again: "
            f"rarefish init {folder} …"
        )
    if version != VERSION:
        raise WorkspaceError(
            f"{folder} was created by another version of rarefish (format {version}; this version reads {VERSION}). "
            "Use that version, or create a workspace in another folder."
        )
    return store


def is_workspace(folder: Path) -> bool:
    """Returns whether this folder contains a workspace; the empty file of an interrupted `init` does not count."""
    if not (folder / FILE).exists():
        return False
    with explain_errors(folder), closing(connect(folder / FILE)) as connection:
        return _version(connection) != 0


@contextmanager
def explain_errors(folder: Path) -> Iterator[None]:
    """Turns SQLite errors into WorkspaceErrors with advice."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WorkspaceError(f"The workspace {folder} cannot be used: {error}.{_way_out(error)}") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        raise WorkspaceError(f"{folder / FILE} is damaged: {error}. Restore the latest backup.") from error


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    """Returns the version of the schema, or 0 for a file without one."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def check_classes(classes: Sequence[str]) -> None:
    """Raises ArgumentError for class names that people or file systems could confuse."""
    if len(classes) < 2:
        raise ArgumentError(f"A workspace needs at least two classes, but found {list_some(classes) or 'none'}.")
    bare = [name for name in classes if name != name.strip() or not name or not name.isprintable()]
    if bare:
        raise ArgumentError(f"Class names must be plain words, but found {list_some(map(repr, bare))}.")
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(name.casefold(), name)
        if other != name or list(classes).count(name) > 1:
            raise ArgumentError(f"The classes {other!r} and {name!r} differ only in case, or not at all. Rename one.")


def now() -> str:
    """Returns the current UTC time in ISO 8601 format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script; executescript() would commit the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _way_out(error: sqlite3.OperationalError) -> str:
    text = str(error)
    if "full" in text:
        return " The disk is full, and nothing was changed. Free some space and try again."
    if "locked" in text:
        return " Another process is using it. Try again."
    if "readonly" in text:
        return " It is read-only. Copy it to a writable folder (rarefish backup) and use the copy."
    if "unable to open" in text:
        return f" If it is read-only, copy {FILE} and {FILE}-wal to a writable folder and use the copy."
    return ""
