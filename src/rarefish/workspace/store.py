"""A workspace's store: one SQLite file, read and written in whole transactions by any number of processes."""

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rarefish.errors import ArgumentError, WorkspaceError, list_some

FILE = "rarefish.db"
VERSION = 1
PATIENCE_S = 30
"""How long a process waits for another to finish its transaction."""


@dataclass(frozen=True)
class Store:
    """A workspace that is there; connections are made as threads need them."""

    folder: Path
    _own: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the store."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All of what is written inside, or none; it is on disk when this ends."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._connection()
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise WorkspaceError(f"The workspace {self.folder} cannot be used: {error}.{_way_out(error)}") from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.IntegrityError):
                raise
            raise WorkspaceError(f"{self.folder / FILE} is damaged: {error}. Take the last copy of it.") from error

    def _connection(self) -> sqlite3.Connection:
        if getattr(self._own, "pid", None) != os.getpid():  # a connection must not cross a fork
            self._own.connection = connect(self.folder / FILE)
            self._own.pid = os.getpid()
        return self._own.connection

    def settings(self) -> dict[str, Any]:
        with self.reading() as connection:
            return {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM setting")}

    def set(self, **values: object) -> None:
        with self.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO setting VALUES (?, ?)", [(name, json.dumps(v)) for name, v in values.items()]
            )

    def classes(self) -> list[str]:
        """Names, in the order of the model's outputs."""
        with self.reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM class ORDER BY number")]

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """While this lasts no other process does the same to the workspace; a killed one lets go of it."""
        with (self.folder / f".{what}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WorkspaceError(f"Another process is {what} in {self.folder}. Wait until it is done.") from error
            yield


def create_store(folder: Path, classes: Sequence[str]) -> Store:
    """A new workspace, or one that is there with the same classes."""
    check_classes(classes)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("models", "exports"):
        (folder / name).mkdir(exist_ok=True)
    try:
        connection = connect(folder / FILE)
    except sqlite3.Error as error:
        raise WorkspaceError(f"No workspace can be made in {folder}: {error}.") from error
    try:
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            for statement in _statements((Path(__file__).with_name("schema.sql")).read_text(encoding="utf-8")):
                connection.execute(statement)
            connection.executemany("INSERT INTO class VALUES (?, ?)", list(enumerate(classes)))
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        connection.close()
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
    store = Store(folder)
    with store.reading() as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise WorkspaceError(f"{folder} was made by another version of rarefish ({version}, this one is {VERSION}).")
    return store


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a label that was answered for survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


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
    return ""
