"""A workspace's store: one SQLite file, read and written in whole transactions by any number of processes."""

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
from rarefish.workspace.connections import Connection, Connections, connect

FILE = "rarefish.db"
VERSION = 1


@dataclass(frozen=True)
class Store:
    """A workspace that is there; connections are made as threads need them."""

    folder: Path
    _connections: Connections = field(repr=False, compare=False)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the store."""
        with explained(self.folder), self._connections.lent() as connection, _transaction(connection, "BEGIN"):
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All of what is written inside, or none; it is on disk, at the workspace's path, when this ends."""
        with explained(self.folder), self._connections.lent() as connection:
            with _transaction(connection, "BEGIN IMMEDIATE"):
                yield connection
            self._connections.check(connection)

    def checkpoint(self) -> int:
        """Merges what was committed into rarefish.db; returns how many pages are left because others still read."""
        with explained(self.folder), self._connections.lent() as connection:
            if connection.is_read_only:
                return 0
            _, pages, merged = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return max(0, pages - merged)

    def close(self) -> None:
        """Merges what was committed into rarefish.db and closes it; a store that is used again opens it again."""
        self._connections.close()

    def has_wal(self) -> bool:
        """Whether a process has the workspace open: then rarefish.db by itself may lack the last labels."""
        return (self.folder / f"{FILE}-wal").exists()

    def _connection(self) -> Connection:
        return self._connections.own()

    def settings(self) -> dict[str, Any]:
        with self.reading() as connection:
            return {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM setting")}

    def set(self, **values: object) -> None:
        with self.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO setting VALUES (?, ?)", [(name, json.dumps(v)) for name, v in values.items()]
            )

    def identity(self) -> str:
        """A random name of this workspace; with it a page that is still open never answers into another workspace."""
        with self.writing() as connection:
            random_name = json.dumps(secrets.token_hex(8))
            connection.execute("INSERT OR IGNORE INTO setting VALUES ('identity', ?)", (random_name,))
        return self.settings()["identity"]

    def classes(self) -> list[str]:
        """Names, in the order of the model's outputs."""
        with self.reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM class ORDER BY number")]

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """While this lasts no other process does the same to the workspace; a killed one lets go of it."""
        with _open_lock(self.folder / f".{what}.lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WorkspaceError(f"Another process is {what} in {self.folder}. Wait until it is done.") from error
            yield


def _open_lock(path: Path) -> IO[bytes]:
    """The lock file, made where it is missing; an existing file is never emptied and a link is never followed."""
    try:
        return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "r+b", buffering=0)
    except OSError as error:
        if not path.is_symlink():
            raise
        raise WorkspaceError(f"{path} is a symbolic link; a lock file must be a file. Remove the link.") from error


def create_store(folder: Path, classes: Sequence[str]) -> Store:
    """A new workspace, or one that is there with the same classes."""
    check_classes(classes)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("models", "exports"):
        (folder / name).mkdir(exist_ok=True)
    with (
        explained(folder),
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
            f"{folder} is a workspace with other classes: {list_some(store.classes())}. Name these, or another folder."
        )
    return store


def open_store(folder: Path) -> Store:
    """The workspace in that folder."""
    if not (folder / FILE).exists():
        raise WorkspaceError(f"{folder} is no workspace. Make one: rarefish init {folder} --pool … --validation …")
    store = Store(folder, Connections(folder / FILE))
    with explained(folder):
        version = _version(store._connections.own())
    if version == 0:
        raise WorkspaceError(
            f"{folder} is no workspace yet: making it was interrupted. Do it again: rarefish init {folder} …"
        )
    if version != VERSION:
        raise WorkspaceError(f"{folder} was made by another version of rarefish ({version}, this one is {VERSION}).")
    return store


def is_workspace(folder: Path) -> bool:
    """Whether that folder has a workspace; the empty file that an interrupted `init` leaves is none."""
    if not (folder / FILE).exists():
        return False
    with explained(folder), closing(connect(folder / FILE)) as connection:
        return _version(connection) != 0


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Errors of SQLite as errors of the workspace, with a way out."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WorkspaceError(f"The workspace {folder} cannot be used: {error}.{_way_out(error)}") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        raise WorkspaceError(f"{folder / FILE} is damaged: {error}. Take the last copy of it.") from error


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
    """The version of the schema; 0 in a file without one."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def check_classes(classes: Sequence[str]) -> None:
    """Complains about names that a person or a file system would take for one another."""
    if len(classes) < 2:
        raise ArgumentError(f"A task needs at least two classes; found {list_some(classes) or 'none'}.")
    bare = [name for name in classes if name != name.strip() or not name or not name.isprintable()]
    if bare:
        raise ArgumentError(f"Class names must be plain words; found {list_some(map(repr, bare))}.")
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(name.casefold(), name)
        if other != name or list(classes).count(name) > 1:
            raise ArgumentError(f"The classes {other!r} and {name!r} differ in case only, or not at all. Rename one.")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _statements(script: str) -> Iterator[str]:
    """One statement after another: executescript() would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _way_out(error: sqlite3.OperationalError) -> str:
    text = str(error)
    if "full" in text:
        return " The disk is full: nothing was changed; make room and do it again."
    if "locked" in text:
        return " Another process holds it: do it again."
    if "readonly" in text:
        return " It can only be read here: copy it to a folder you may write to (rarefish backup), and use that."
    if "unable to open" in text:
        return f" If it can only be read here, copy {FILE} and {FILE}-wal to a folder you may write to, and use that."
    return ""
