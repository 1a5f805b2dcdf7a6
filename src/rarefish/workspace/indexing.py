"""Index image files in a workspace: hash and check them, and record why a file is left out."""

import os
import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path

from rarefish.data.file_listing import ListedFile, show
from rarefish.data.hashing import content_id
from rarefish.data.image_io import open_picture
from rarefish.data.worker_processes import worker_pool
from rarefish.errors import ArgumentError, DataError, WorkspaceError, list_some
from rarefish.progress import track
from rarefish.workspace.reconciliation import IN_VALIDATION, Changes, Content, FoundFile, Row, reconcile
from rarefish.workspace.store import Store

AT_ONCE = 64
MOST_BYTES = 1 << 30
"""Larger files are left out unread."""
FEW = 5
"""Maximum number of file names in a summary."""


@dataclass(frozen=True)
class Indexed:
    """The result of indexing."""

    taken: int
    """Total number of usable images."""
    new: int
    left_out: dict[str, tuple[int, tuple[str, ...]]]
    """For each state, the number of files, and the names and notes of some of them."""


def index(
    store: Store, part: str, root: Path, files: Sequence[ListedFile], *, jobs: int = 0, shown: bool = True
) -> Indexed:
    """Indexes files; files with unchanged path, size and modification time are not read again.

    New images are recorded in batches as they are read, so that a run that was killed can continue where it stopped.
    Moved, copied, edited and removed files are handled in one transaction at the end, when all files are known.
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
        contents = _read_all([os.path.join(start, f.path) for f in fresh], jobs)
        contents = track(contents, total=len(fresh), title=f"reading {part} images", shown=shown)
        pairs, num_new, found = zip(fresh, contents, strict=True), 0, dict[bytes, Content]()
        while batch := list(islice(pairs, 1000)):
            with store.writing() as connection:
                for file, content in batch:
                    if file.path not in known and _add_new(connection, part, file, content, numbers):
                        num_new += 1
                        known[file.path] = (content.bytes, content.modified)
                    else:
                        found[file.path] = content
        with store.writing() as connection:
            rows = _read_rows(connection, part)
            found = {row.path: row.content for row in rows} | found
            seen = [FoundFile(f.path, _number(f, numbers), found[f.path]) for f in files]
            changes = reconcile(part, rows, seen, _trusted(connection) if part == "pool" else ())
            _apply(connection, part, changes)
    return _summary(store, part, num_new + changes.num_fresh)


def check_labels(files: Iterable[ListedFile], known: Container[str]) -> None:
    """Raises ArgumentError if a file has an unknown class."""
    unknown = Counter(f.label for f in files if f.label is not None and f.label not in known)
    if unknown:
        raise ArgumentError(
            f"The validation set has unknown classes: {list_some(unknown)}. Add them to the classes of the workspace."
        )


def check_root(store: Store, part: str, root: Path) -> None:
    """Raises WorkspaceError if `root` is not the indexed folder; the same folder in a new place is accepted."""
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
            f"The {part} images of {store.folder} are in {before}, but {root} is another folder. Put all images into "
            "one folder, or create another workspace."
        )


def _stamp(path: bytes) -> tuple[int, int] | None:
    """Returns the size and modification time of a file, or None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def read_image_file(path: bytes) -> Content:
    """Reads a file once and returns its hash and image size, or why it is not a usable image."""
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
    """Returns the hash that identifies an image's content."""
    return content_id(content)


def _read_all(paths: Sequence[bytes], jobs: int) -> Iterator[Content]:
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1 or len(paths) < 2 * AT_ONCE:
        yield from map(read_image_file, paths)
        return
    try:
        with worker_pool(jobs, "forkserver") as pool:
            yield from pool.map(read_image_file, paths, chunksize=AT_ONCE)
    except BrokenProcessPool as error:
        raise WorkspaceError(
            "A process that reads images was killed, perhaps because it ran out of memory. The images indexed so far "
            "are kept. Run the same command again, with --jobs 1 if it keeps failing."
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
    connection: sqlite3.Connection, part: str, file: ListedFile, content: Content, numbers: dict[str, int]
) -> bool:
    """Adds an image if no row has its content, and returns whether it did; others may be moved files or copies."""
    query = "SELECT 1 FROM image WHERE part = ? AND hash = ?"
    if content.hash and connection.execute(query, (part, content.hash)).fetchone():
        return False
    seen = FoundFile(file.path, _number(file, numbers), content)
    is_trusted = part == "pool" and connection.execute(f"{TRUSTED} AND hash = ?", (content.hash,)).fetchone()
    _insert(connection, part, reconcile(part, [], [seen], {content.hash} if is_trusted else ()).new)
    if part == "validation" and not content.problem:
        connection.execute(f"{DISTRUST} AND hash = ?", (IN_VALIDATION, content.hash))
    return True


def _number(file: ListedFile, numbers: dict[str, int]) -> int | None:
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
    connection.executemany(  # paths are unique, so the rows of swapped files must first give up the old ones
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
