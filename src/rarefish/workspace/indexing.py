"""Image files taken into a workspace: hashed, looked at, and left out with a reason where that must be."""

import csv
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from rarefish.errors import ArgumentError, DataError, list_some
from rarefish.opening import open_picture
from rarefish.progress import track
from rarefish.workspace.store import Store

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
AT_ONCE = 64
MOST_BYTES = 1 << 30
"""Larger files are not images that a person labels."""
FEW = 5
"""Names that a report gives."""


@dataclass(frozen=True)
class Listed:
    """A file that is to be taken in."""

    path: bytes
    """Relative to the part's root."""
    label: str | None = None


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


def list_pool(source: Path) -> tuple[Path, list[Listed]]:
    """Root and files of a pool: all images below a folder, or those a CSV file names in its column path."""
    if source.is_dir():
        return source, [Listed(path) for path in walk(source)]
    return source.parent, [Listed(os.fsencode(row["path"])) for row in _rows(source, {"path"})]


def list_trusted(source: Path) -> tuple[Path, list[Listed]]:
    """The same of a validation set: a folder with one folder a class, or a CSV file with path and label."""
    if source.is_dir():
        found = [Listed(path, os.fsdecode(path.split(b"/")[0])) for path in walk(source) if b"/" in path]
        if not found:
            raise DataError(f"{source} has no folders with images inside, one a class.")
        return source, found
    return source.parent, [Listed(os.fsencode(row["path"]), row["label"]) for row in _rows(source, {"path", "label"})]


def walk(root: Path) -> list[bytes]:
    """Every image below a folder, by name; links to folders are not followed."""
    found, start = [], os.fsencode(root)
    for folder, _, names in os.walk(start):
        for name in names:
            if os.path.splitext(name)[1].lower() in {suffix.encode() for suffix in SUFFIXES}:
                found.append(os.path.relpath(os.path.join(folder, name), start))
    return sorted(found)


def index(
    store: Store, part: str, root: Path, files: Sequence[Listed], *, jobs: int = 0, shown: bool = True
) -> Indexed:
    """Takes files into the store; what is there already, by name, size and time, is not read again.

    In transactions of some files each: a killed run goes on where it stopped.
    """
    numbers = {name: number for number, name in enumerate(store.classes())}
    strange = Counter(f.label for f in files if f.label is not None and f.label not in numbers)
    if strange:
        raise ArgumentError(f"The validation set has classes that were not named: {list_some(strange)}.")
    store.set(**{f"{part}_root": os.fsdecode(os.path.abspath(root))})
    with store.reading() as connection:
        query = "SELECT path, bytes, modified FROM image WHERE part = ?"
        known = {bytes(path): (size, time) for path, size, time in connection.execute(query, (part,))}
    fresh = [f for f in files if f.path not in known]
    look_at = [os.path.join(os.fsencode(root), f.path) for f in fresh]
    looked = track(_look_all(look_at, jobs), total=len(fresh), title=f"looking at the {part} images", shown=shown)
    pairs = zip(fresh, looked, strict=True)
    while some := list(islice(pairs, 1000)):
        with store.writing() as connection:
            for file, look in some:
                _add(connection, part, file, look, numbers)
    return _summary(store, part, len(fresh))


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
    twins = connection.execute(
        "SELECT part, path FROM image WHERE hash = ? AND state = 'ready'", (look.hash,)
    ).fetchall()
    own = next((row["path"] for row in twins if row["part"] == part), None)
    if look.problem:
        state, note = "unreadable", look.problem
    elif part == "pool" and any(row["part"] == "validation" for row in twins):
        state, note = "trusted", "the same image is in the validation set"
    elif own is not None:
        state, note = "duplicate", f"the same image as {show(own)}"
    connection.execute(
        "INSERT OR IGNORE INTO image (part, path, hash, bytes, modified, width, height, class, state, note)"
        " VALUES (?,?,?,?,?,?,?,?,?,?)",
        (
            *(part, file.path, look.hash, look.bytes, look.modified, look.width, look.height),
            *(numbers[file.label] if file.label is not None else None, state, note),
        ),
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
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in path.decode("utf-8", "backslashreplace"))


def _rows(manifest: Path, columns: set[str]) -> Iterable[dict[str, str]]:
    if not manifest.exists():
        raise DataError(f"There is no {manifest}.")
    with manifest.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        reader = csv.DictReader(file)
        if not columns <= set(reader.fieldnames or ()):
            found, needed = list_some(reader.fieldnames or ()), ", ".join(sorted(columns))
            raise DataError(f"{manifest} has the columns {found}; it needs {needed}.")
        return list(reader)
