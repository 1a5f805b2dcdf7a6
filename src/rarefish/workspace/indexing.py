"""Image files taken into a workspace: hashed, looked at, and left out with a reason where that must be."""

import os
import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from rarefish.errors import ArgumentError, DataError, WorkspaceError, list_some
from rarefish.opening import open_picture, printable
from rarefish.progress import track
from rarefish.workspace.listing import Listed
from rarefish.workspace.store import Store

AT_ONCE = 64
MOST_BYTES = 1 << 30
"""Larger files are not images that a person labels."""
FEW = 5
"""Names that a report gives."""


@dataclass(frozen=True)
class Looked:
    """What a look at a file showed."""

    hash: str
    bytes: int
    modified: int
    width: int = 0
    height: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Indexed:
    """What came of it, for a report."""

    taken: int
    """Images that can be used, in all."""
    new: int
    left_out: dict[str, tuple[int, tuple[str, ...]]]
    """State -> how many, and some of them by name."""


def index(
    store: Store, part: str, root: Path, files: Sequence[Listed], *, jobs: int = 0, shown: bool = True
) -> Indexed:
    """Takes files into the store; what is there already, by name, size and time, is not read again.

    In transactions of some files each: a killed run goes on where it stopped. A file that changed is looked at again,
    unless people were asked about it: then it stays what it was, and is left out while it is another.
    """
    numbers = {name: number for number, name in enumerate(store.classes())}
    check_labels(files, numbers)
    check_root(store, part, root)
    store.set(**{f"{part}_root": os.fsdecode(os.path.abspath(root))})
    start = os.fsencode(root)
    with store.reading() as connection:
        query = "SELECT path, bytes, modified, id IN (SELECT image FROM pick) AS is_asked FROM image WHERE part = ?"
        known = {bytes(row["path"]): row for row in connection.execute(query, (part,))}
    fresh = [f for f in files if f.path not in known or _is_other(os.path.join(start, f.path), known[f.path])]
    looked = _look_all([os.path.join(start, f.path) for f in fresh], jobs)
    looked = track(looked, total=len(fresh), title=f"looking at the {part} images", shown=shown)
    pairs = zip(fresh, looked, strict=True)
    while some := list(islice(pairs, 1000)):
        with store.writing() as connection:
            for file, look in some:
                _add(connection, part, file, look, numbers)
    _mark_gone(store, part, known.keys() - {f.path for f in files})
    return _summary(store, part, len(fresh))


def check_labels(files: Iterable[Listed], known: Container[str]) -> None:
    """Complains about classes that were not named."""
    strange = Counter(f.label for f in files if f.label is not None and f.label not in known)
    if strange:
        raise ArgumentError(f"The validation set has classes that were not named: {list_some(strange)}.")


def check_root(store: Store, part: str, root: Path) -> None:
    """A folder that was moved is fine; another one would make all that is known unreadable."""
    before = store.settings().get(f"{part}_root")
    if before is None or Path(before) == Path(os.path.abspath(root)):
        return
    with store.reading() as connection:
        query = "SELECT path, bytes FROM image WHERE part = ? AND state = 'ready' LIMIT 50"
        known = connection.execute(query, (part,)).fetchall()
    here = [(os.path.join(os.fsencode(root), row["path"]), row["bytes"]) for row in known]
    there = sum(os.path.isfile(path) and os.path.getsize(path) == size for path, size in here)
    if known and there < len(known) / 2:
        raise WorkspaceError(
            f"The {part} images of {store.folder} are in {before}; {root} is another folder. Put all of them below one "
            "folder and name that, or make another workspace."
        )


def _is_other(path: bytes, known: sqlite3.Row) -> bool:
    """Whether a known file is another by now and may be looked at again."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return not known["is_asked"] and (status.st_size, status.st_mtime_ns) != (known["bytes"], known["modified"])


def _mark_gone(store: Store, part: str, paths: Iterable[bytes]) -> None:
    with store.writing() as connection:
        connection.executemany(
            "UPDATE image SET state = 'unreadable', note = 'is gone', modified = 0 "
            "WHERE part = ? AND path = ? AND id NOT IN (SELECT image FROM pick)",
            [(part, path) for path in paths],
        )


def look(path: bytes) -> Looked:
    """One file read once: its hash, and whether it is an image."""
    try:
        status = os.stat(path)
        modified = status.st_mtime_ns
        if not os.path.isfile(path):
            return Looked("", status.st_size, modified, problem="is not a file")
        if status.st_size > MOST_BYTES:
            return Looked("", status.st_size, modified, problem=f"has {status.st_size:,} bytes")
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        return Looked("", 0, 0, problem=str(error.strerror or error))
    hash_ = fingerprint(content)
    try:
        picture = open_picture(BytesIO(content), "the file")
    except DataError as error:
        return Looked(hash_, len(content), modified, problem=str(error))
    return Looked(hash_, len(content), modified, *picture.size)


def fingerprint(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _look_all(paths: Sequence[bytes], jobs: int) -> Iterator[Looked]:
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1 or len(paths) < 2 * AT_ONCE:
        yield from map(look, paths)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        yield from pool.map(look, paths, chunksize=AT_ONCE)


def _add(connection: sqlite3.Connection, part: str, file: Listed, look: Looked, numbers: dict[str, int]) -> None:
    state, note = "ready", ""
    number = numbers[file.label] if file.label is not None else None
    query = "SELECT part, path, class FROM image WHERE hash = ? AND state = 'ready' AND NOT (part = ? AND path = ?)"
    twins = connection.execute(query, (look.hash, part, file.path)).fetchall() if look.hash else []
    own = next((row for row in twins if row["part"] == part), None)
    if look.problem:
        state, note = "unreadable", look.problem
    elif part == "pool" and any(row["part"] == "validation" for row in twins):
        state, note = "trusted", "the same image is in the validation set"
    elif own is not None:
        if own["class"] != number:
            raise DataError(f"{show(own['path'])} and {show(file.path)} are the same image in two classes. Remove one.")
        state, note = "duplicate", f"the same image as {show(own['path'])}"
    columns = ("part", "path", "hash", "bytes", "modified", "width", "height", "class", "state", "note")
    values = (part, file.path, look.hash, look.bytes, look.modified, look.width, look.height, number, state, note)
    connection.execute(
        f"INSERT INTO image ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT (part, path) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns[2:])}",
        values,
    )
    if part == "validation" and state == "ready":
        connection.execute(
            "UPDATE image SET state = 'trusted', note = 'the same image is in the validation set' "
            "WHERE part = 'pool' AND hash = ? AND state = 'ready'",
            (look.hash,),
        )


def _summary(store: Store, part: str, new: int) -> Indexed:
    with store.reading() as connection:
        counts = dict(
            connection.execute("SELECT state, count(*) FROM image WHERE part = ? GROUP BY state", (part,)).fetchall()
        )
        query = "SELECT path, note FROM image WHERE part = ? AND state = ? ORDER BY id LIMIT ?"
        left_out = {
            state: (count, tuple(f"{show(p)}: {note}" for p, note in connection.execute(query, (part, state, FEW))))
            for state, count in counts.items()
            if state != "ready"
        }
    return Indexed(counts.get("ready", 0), new, left_out)


def show(path: bytes) -> str:
    """A name that can be printed, whatever bytes it has."""
    return printable(path.decode("utf-8", "backslashreplace"))
