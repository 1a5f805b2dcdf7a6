"""Image files taken into a workspace: hashed, looked at, and left out with a reason where that must be."""

import os
import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from rarefish.data.file_listing import Listed, show
from rarefish.data.image_io import open_picture
from rarefish.data.worker_processes import end_with_parent
from rarefish.errors import ArgumentError, DataError, WorkspaceError, list_some
from rarefish.progress import track
from rarefish.workspace.reconciliation import IN_VALIDATION, Changes, Content, Row, Seen, reconcile
from rarefish.workspace.store import Store

AT_ONCE = 64
MOST_BYTES = 1 << 30
"""Larger files are not images that a person labels."""
FEW = 5
"""Names that a report gives."""


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
    """Takes files into the store; a known path with the size and time that it had before is not read again.

    New images are written as they are read, some at a time, so a killed run goes on where it stopped. Everything else
    (moved, copied, edited and removed files) is settled at the end in one transaction, when all files are known.
    """
    numbers = {name: number for number, name in enumerate(store.classes())}
    check_labels(files, numbers)
    with store.alone("indexing"):
        check_root(store, part, root)
        store.set(**{f"{part}_root": os.fsdecode(os.path.abspath(root))})
        start = os.fsencode(root)
        with store.reading() as connection:
            query = "SELECT path, bytes, modified FROM image WHERE part = ?"
            known = {bytes(path): (size, modified) for path, size, modified in connection.execute(query, (part,))}
        fresh = [f for f in files if _stamp(os.path.join(start, f.path)) != known.get(f.path, ())]
        looked = _look_all([os.path.join(start, f.path) for f in fresh], jobs)
        looked = track(looked, total=len(fresh), title=f"looking at the {part} images", shown=shown)
        pairs, num_new, found = zip(fresh, looked, strict=True), 0, dict[bytes, Content]()
        while some := list(islice(pairs, 1000)):
            with store.writing() as connection:
                for file, content in some:
                    if file.path not in known and _add_new(connection, part, file, content, numbers):
                        num_new += 1
                        known[file.path] = (content.bytes, content.modified)
                    else:
                        found[file.path] = content
        with store.writing() as connection:
            rows = _read_rows(connection, part)
            found = {row.path: row.content for row in rows} | found
            seen = [Seen(f.path, _number(f, numbers), found[f.path]) for f in files]
            changes = reconcile(part, rows, seen, _trusted(connection) if part == "pool" else ())
            _apply(connection, part, changes)
    return _summary(store, part, num_new + changes.num_fresh)


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


def _stamp(path: bytes) -> tuple[int, int] | None:
    """Size and time of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def look(path: bytes) -> Content:
    """One file read once: its hash, and whether it is an image."""
    try:
        status = os.stat(path)
        modified = status.st_mtime_ns
        if not os.path.isfile(path):
            return Content("", status.st_size, modified, problem="is not a file")
        if status.st_size > MOST_BYTES:
            return Content("", status.st_size, modified, problem=f"has {status.st_size:,} bytes")
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        return Content("", 0, 0, problem=str(error.strerror or error))
    hash_ = fingerprint(content)
    try:
        picture = open_picture(BytesIO(content), "the file")
    except DataError as error:
        return Content(hash_, len(content), modified, problem=str(error))
    return Content(hash_, len(content), modified, *picture.size)


def fingerprint(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _look_all(paths: Sequence[bytes], jobs: int) -> Iterator[Content]:
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1 or len(paths) < 2 * AT_ONCE:
        yield from map(look, paths)
        return
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver"), initializer=end_with_parent) as pool:
            yield from pool.map(look, paths, chunksize=AT_ONCE)
    except BrokenProcessPool as error:
        raise WorkspaceError(
            "A process that reads images was killed, perhaps because memory ran out. What was indexed is kept. Run the "
            "same command again, with --jobs 1 if this goes on."
        ) from error


COLUMNS = ("path", "hash", "bytes", "modified", "width", "height", "class", "state", "note")


def _values(row: Row) -> tuple[object, ...]:
    of = row.content
    return row.path, of.hash, of.bytes, of.modified, of.width, of.height, row.number, row.state, row.note


def _insert(connection: sqlite3.Connection, part: str, rows: Iterable[Row]) -> None:
    connection.executemany(
        f"INSERT INTO image (part, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})",
        ((part, *_values(row)) for row in rows),
    )


def _add_new(
    connection: sqlite3.Connection, part: str, file: Listed, content: Content, numbers: dict[str, int]
) -> bool:
    """Whether the image was added at once, as one that no row has at any path: it cannot be a moved one or a copy."""
    query = "SELECT 1 FROM image WHERE part = ? AND hash = ?"
    if content.hash and connection.execute(query, (part, content.hash)).fetchone():
        return False
    seen = Seen(file.path, _number(file, numbers), content)
    is_trusted = part == "pool" and connection.execute(f"{TRUSTED} AND hash = ?", (content.hash,)).fetchone()
    _insert(connection, part, reconcile(part, [], [seen], {content.hash} if is_trusted else ()).new)
    if part == "validation" and not content.problem:
        connection.execute(f"{DISTRUST} AND hash = ?", (IN_VALIDATION, content.hash))
    return True


def _number(file: Listed, numbers: dict[str, int]) -> int | None:
    return None if file.label is None else numbers[file.label]


def _read_rows(connection: sqlite3.Connection, part: str) -> list[Row]:
    query = (
        f"SELECT id, {', '.join(COLUMNS)}, id IN (SELECT image FROM pick UNION SELECT center FROM pick "
        "WHERE center IS NOT NULL) FROM image WHERE part = ? ORDER BY id"
    )
    return [_to_row(row) for row in connection.execute(query, (part,))]


def _to_row(row: sqlite3.Row) -> Row:
    id_, path, hash_, size, modified, width, height, number, state, note, is_kept = row
    problem = note if state == "unreadable" else ""
    content = Content(hash_, size, modified, width, height, problem)
    return Row(id_, bytes(path), number, content, state, note, bool(is_kept))


TRUSTED = "SELECT hash FROM image WHERE part = 'validation' AND state = 'ready'"
DISTRUST = "UPDATE image SET state = 'trusted', note = ? WHERE part = 'pool' AND state = 'ready'"


def _trusted(connection: sqlite3.Connection) -> set[str]:
    return {hash_ for (hash_,) in connection.execute(TRUSTED)}


def _apply(connection: sqlite3.Connection, part: str, changes: Changes) -> None:
    connection.executemany("DELETE FROM image WHERE id = ?", [(id_,) for id_ in changes.removed])
    connection.executemany(  # paths are unique, so where files were swapped their rows first give up the old ones
        "UPDATE image SET path = ? WHERE id = ? AND path <> ?",
        [(b"/moving/%d" % (row.id or 0), row.id, row.path) for row in changes.changed],
    )
    connection.executemany(
        f"UPDATE image SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE id = ?",
        [(*_values(row), row.id) for row in changes.changed],
    )
    _insert(connection, part, changes.new)
    if part == "validation":
        connection.execute(f"{DISTRUST} AND hash IN ({TRUSTED})", (IN_VALIDATION,))


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
