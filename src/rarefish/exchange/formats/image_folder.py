"""One folder per class, as torchvision's ImageFolder reads it. Imported images are identified by their content."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from rarefish.data.file_listing import walk
from rarefish.errors import DataError
from rarefish.exchange.atomic_output import MARKER_FILE, link_or_copy
from rarefish.exchange.export_items import Item
from rarefish.exchange.label_parsing import ParsedLabel, read_json, require
from rarefish.exchange.safe_names import make_unique, to_file_name, to_folder_names
from rarefish.workspace.indexing import fingerprint, show


def write_folders(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes one folder per class, and a folder of images without a class, from which people can sort them."""
    folders = to_folder_names(classes)
    unlabeled = make_unique("unlabeled", folders.values())
    path.mkdir()
    for folder in folders.values():
        (path / folder).mkdir()
    for item in items:
        folder = path / (unlabeled if item.label is None else folders[item.label])
        folder.mkdir(exist_ok=True)
        link_or_copy(item, folder / to_file_name(item.image, item.path))
    description = {"folders": {folder: name for name, folder in folders.items()}, "unlabeled": unlabeled}
    (path / MARKER_FILE).write_text(json.dumps(description, indent=1), encoding="utf-8")


def read_folders(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields one label per image: the name of its folder."""
    if not source.is_dir():
        raise DataError(f"{source} is not a folder. The format imagefolder has one folder per class.")
    description = require(read_json(source / MARKER_FILE), dict, MARKER_FILE) if (source / MARKER_FILE).exists() else {}
    folders = require(description.get("folders", {}), dict, f"folders in {MARKER_FILE}")
    paths = [path for path in walk(source) if b"/" in path]
    if not paths:
        raise DataError(f"{source} contains no folders with images. Give one folder per class.")
    for path in paths:
        folder = os.fsdecode(path.split(b"/")[0])
        if folder == description.get("unlabeled"):
            continue
        name = require(folders.get(folder, folder), str, f"Folder {folder!r} in {MARKER_FILE}")
        full = os.path.join(os.fsencode(source), path)
        if os.path.isfile(full):
            yield ParsedLabel(show(path), hash=hash_file(full), name=name)


def hash_file(path: bytes) -> str:
    """Returns the content hash of a file, as the store computes it."""
    try:
        with open(path, "rb") as file:
            return fingerprint(file.read())
    except OSError as error:
        raise DataError(f"{show(path)} cannot be read: {error.strerror}. Nothing was imported.") from error
