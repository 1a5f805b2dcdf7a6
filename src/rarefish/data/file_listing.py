"""Which files a pool or a validation set has: a folder, or a CSV file that names them."""

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rarefish.data.image_io import SUFFIXES, printable
from rarefish.errors import DataError, list_some


@dataclass(frozen=True)
class Listed:
    """A file that is to be taken in."""

    path: bytes
    """Relative to the part's root."""
    label: str | None = None


def list_pool(source: Path) -> tuple[Path, list[Listed]]:
    """Root and files of a pool: all images below a folder, or those a CSV file names in its column path."""
    if source.is_dir():
        return source, [Listed(path) for path in walk(source)]
    return source.parent, [Listed(os.fsencode(path)) for (path,) in _rows(source, ("path",))]


def list_trusted(source: Path) -> tuple[Path, list[Listed]]:
    """The same of a validation set: a folder with one folder a class, or a CSV file with path and label."""
    if source.is_dir():
        found = [Listed(path, os.fsdecode(path.split(b"/")[0])) for path in walk(source) if b"/" in path]
        if not found:
            raise DataError(f"{source} has no folders with images inside, one a class.")
        return source, found
    return source.parent, [Listed(os.fsencode(path), label) for path, label in _rows(source, ("path", "label"))]


def name_classes(source: Path, files: list[Listed]) -> list[str]:
    """The classes of a validation set, by name; a folder without images is one too."""
    names = {file.label for file in files if file.label is not None}
    if source.is_dir():
        names |= {entry.name for entry in source.iterdir() if entry.is_dir() and entry.name[0] != "."}
    return sorted(names)


def show(path: bytes) -> str:
    """A name that can be printed, whatever bytes it has."""
    return printable(path.decode("utf-8", "backslashreplace"))


def walk(root: Path) -> list[bytes]:
    """Every image below a folder, by name; links to folders are followed, once each; hidden ones are left out.

    A folder that cannot be listed is an error: without it all of its images would seem to be gone.
    """
    found, start, seen = [], os.fsencode(root), set[tuple[int, int]]()
    for folder, folders, names in os.walk(start, followlinks=True, onerror=_cannot_list):
        shown = [name for name in folders if not name.startswith(b".")]
        folders[:] = [name for name in shown if _is_new(os.path.join(folder, name), seen)]
        for name in names:
            if name.startswith(b"."):
                continue
            path = os.path.join(folder, name)
            if os.path.splitext(name)[1].lower() in _SUFFIXES:
                found.append(os.path.relpath(path, start))
            elif os.path.islink(path):
                _status(path)  # os.walk takes a link to a folder that cannot be reached for a file
    return sorted(found)


_SUFFIXES = {suffix.encode() for suffix in SUFFIXES}


def _is_new(folder: bytes, seen: set[tuple[int, int]]) -> bool:
    status = _status(folder)
    place = status.st_dev, status.st_ino
    is_new = place not in seen
    seen.add(place)
    return is_new


def _status(path: bytes) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        _cannot_list(error)


def _cannot_list(error: OSError) -> NoReturn:
    raise DataError(
        f"{show(os.fsencode(error.filename))} cannot be listed: {error.strerror}. Make it readable, or remove it."
    ) from error


def _rows(manifest: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The named columns of a CSV file, none of them empty."""
    if not manifest.exists():
        raise DataError(f"There is no {manifest}.")
    rows = []
    with manifest.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.DictReader(file)
        try:
            if not set(columns) <= set(reader.fieldnames or ()):
                found, needed = list_some(reader.fieldnames or ()), ", ".join(columns)
                raise DataError(f"{manifest} has the columns {found}; it needs {needed}.")
            for row in reader:
                empty = [name for name in columns if not (row[name] or "").strip()]
                if empty:
                    where = f"{manifest}, line {reader.line_num}"
                    raise DataError(f"{where}: there is no {empty[0]}. Mend or remove the line.")
                rows.append(tuple(row[name] for name in columns))
        except csv.Error as error:
            raise DataError(f"{manifest}, line {reader.line_num}: {error}.") from error
    return rows
