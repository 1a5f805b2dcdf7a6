"""List the image files of a pool or a validation set: those in a folder, or those named in a CSV manifest."""

import csv
import os
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from rarefish.data.image_io import SUFFIXES, printable
from rarefish.errors import DataError, list_some
from rarefish.io import open_regular


@dataclass(frozen=True)
class ListedFile:
    """A file found in a folder or named in a manifest."""

    path: bytes
    """Path relative to the root of the pool or validation set."""
    label: str | None = None


def list_pool(source: Path) -> tuple[Path, list[ListedFile]]:
    """Returns the root and the files of a pool: all images below a folder, or the path column of a CSV file."""
    if source.is_dir():
        return source, [ListedFile(path) for path in walk(source)]
    return source.parent, [ListedFile(os.fsencode(path)) for (path,) in read_columns(source, ("path",))]


def list_trusted(source: Path) -> tuple[Path, list[ListedFile]]:
    """Returns the root and the labeled files of a validation set.

    The source is a folder with one subfolder per class, or a CSV file with the columns path and label.
    """
    if source.is_dir():
        found = [ListedFile(path, os.fsdecode(path.split(b"/")[0])) for path in walk(source) if b"/" in path]
        if not found:
            raise DataError(f"{source} has no folders with images inside. Create one folder per class.")
        return source, found
    rows = read_columns(source, ("path", "label"))
    return source.parent, [ListedFile(os.fsencode(path), label) for path, label in rows]


def name_classes(source: Path, files: list[ListedFile]) -> list[str]:
    """Returns the sorted class names of a validation set; a subfolder without images is also a class."""
    names = {file.label for file in files if file.label is not None}
    if source.is_dir():
        names |= {entry.name for entry in source.iterdir() if entry.is_dir() and entry.name[0] != "."}
    return sorted(names)


def show(path: bytes) -> str:
    """Returns the path as text that is safe to print, whatever bytes it contains."""
    return printable(path.decode("utf-8", "backslashreplace"))


def walk(root: Path) -> list[bytes]:
    """Returns the path of every image below a folder, relative to it and sorted by folder and name.

    Links to folders are followed, and no folder is listed twice. Hidden files and folders are skipped. A folder that
    cannot be listed is an error, because all of its images would otherwise seem to be missing.
    """
    start = os.fsencode(root)
    prefix, seen, found = len(os.path.join(start, b"")), {_identity(start)}, list[bytes]()
    for folder, folders, names in os.walk(start, followlinks=True, onerror=_cannot_list):
        visible = sorted(name for name in folders if not name.startswith(b"."))
        folders[:] = [name for name in visible if _is_new(os.path.join(folder, name), seen)]
        for name in names:
            if name.startswith(b"."):
                continue
            path = os.path.join(folder, name)
            if os.path.splitext(name)[1].lower() in _SUFFIXES:
                found.append(path[prefix:])
            elif os.path.islink(path):
                _identity(path)  # os.walk reports a link to an unreachable folder as a file
    return sorted(found, key=lambda path: path.split(b"/"))


_SUFFIXES = {suffix.encode() for suffix in SUFFIXES}


def read_columns(manifest: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns the named columns of a CSV file, row by row.

    The file must be UTF-8, with or without a byte order mark; only paths may contain other bytes, as file names do. A
    missing column or an empty cell is an error.
    """
    if not manifest.exists():
        raise DataError(f"{manifest} does not exist.")
    rows = []
    with open_regular(manifest) as file:
        reader = csv.DictReader(TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline=""))
        try:
            header = [_decoded(name) for name in reader.fieldnames or ()]
            if not set(columns) <= set(header):
                raise DataError(
                    f"{manifest} has the columns {list_some(header) or 'none'}, but needs {' and '.join(columns)}."
                )
            for row in reader:
                empty = [name for name in columns if not (row[name] or "").strip()]
                if empty:
                    where = f"{manifest}, line {reader.line_num}"
                    raise DataError(f"{where}: the {empty[0]} is empty. Complete or remove the line.")
                rows.append(tuple(row[name] if name == "path" else _decoded(row[name]) for name in columns))
        except (csv.Error, UnicodeError) as error:
            raise DataError(f"{manifest} is not a UTF-8 CSV file: {error} (line {reader.line_num}).") from error
    return rows


def _decoded(text: str) -> str:
    """Returns the text itself; raises UnicodeDecodeError if it came from bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode()


def _is_new(folder: bytes, seen: set[tuple[int, int]]) -> bool:
    identity = _identity(folder)
    is_new = identity not in seen
    seen.add(identity)
    return is_new


def _identity(path: bytes) -> tuple[int, int]:
    """Returns the device and inode of a file or folder, which are the same for every link to it."""
    try:
        status = os.stat(path)
    except OSError as error:
        _cannot_list(error)
    return status.st_dev, status.st_ino


def _cannot_list(error: OSError) -> NoReturn:
    raise DataError(
        f"{show(os.fsencode(error.filename))} cannot be listed: {error.strerror}. Make it readable, or remove it."
    ) from error
