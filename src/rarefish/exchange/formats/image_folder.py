"""A folder with one folder a class, as torchvision's ImageFolder reads it. Images are known again by their content."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from rarefish.data.file_listing import walk
from rarefish.errors import DataError
from rarefish.exchange.found import Found, need, read_json
from rarefish.exchange.items import Item
from rarefish.exchange.names import spare, to_file, to_folders
from rarefish.exchange.places import MARK, lay
from rarefish.workspace.indexing import fingerprint, show


def write_folders(items: list[Item], classes: list[str], place: Path) -> None:
    """Images without a class go into a folder beside the others; sort them from there, then import."""
    folders = to_folders(classes)
    rest = spare("unlabeled", folders.values())
    place.mkdir()
    for folder in folders.values():
        (place / folder).mkdir()
    for item in items:
        folder = place / (rest if item.label is None else folders[item.label])
        folder.mkdir(exist_ok=True)
        lay(item, folder / to_file(item.image, item.path))
    known = {"folders": {folder: name for name, folder in folders.items()}, "unlabeled": rest}
    (place / MARK).write_text(json.dumps(known, indent=1), encoding="utf-8")


def read_folders(source: Path, classes: list[str]) -> Iterator[Found]:
    if not source.is_dir():
        raise DataError(f"{source} is no folder. An imagefolder has one folder a class.")
    known = need(read_json(source / MARK), dict, MARK) if (source / MARK).exists() else {}
    folders = need(known.get("folders", {}), dict, f"folders in {MARK}")
    paths = [path for path in walk(source) if b"/" in path]
    if not paths:
        raise DataError(f"{source} has no folders with images inside, one a class.")
    for path in paths:
        folder = os.fsdecode(path.split(b"/")[0])
        if folder == known.get("unlabeled"):
            continue
        name = need(folders.get(folder, folder), str, f"Folder {folder!r} in {MARK}")
        full = os.path.join(os.fsencode(source), path)
        if os.path.isfile(full):
            yield Found(show(path), hash=hash_file(full), name=name)


def hash_file(path: bytes) -> str:
    """As the store has it of the same file."""
    try:
        with open(path, "rb") as file:
            return fingerprint(file.read())
    except OSError as error:
        raise DataError(f"{show(path)} cannot be read: {error.strerror}. Nothing was imported.") from error
