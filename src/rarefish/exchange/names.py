"""Names that any tool can hold: for images in text, for files and folders, for what is no class."""

import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from rarefish.data.image_io import SUFFIXES

LONGEST_FOLDER = 80


def to_name(path: bytes) -> str:
    """The path as text; one that is not UTF-8, or cannot be printed, with its bytes escaped as in a URL."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return quote(path, safe="/ ")
    return text if text.isprintable() else quote(path, safe="/ ")


def to_file(image: int, path: bytes) -> str:
    """A file's name from the image's number: every file system and tool can hold it."""
    suffix = os.fsdecode(os.path.splitext(path)[1]).lower()
    return f"{image:08d}{suffix if suffix in SUFFIXES else '.png'}"


def to_folders(classes: Sequence[str]) -> dict[str, str]:
    """Class -> a folder's name, each its own; what a file system could take amiss is replaced."""
    folders: dict[str, str] = {}
    for name in classes:
        plain = re.sub(r'[\\/:*?"<>|]', "_", name).strip(". ")
        while len(plain.encode()) > LONGEST_FOLDER:
            plain = plain[:-1]
        folders[name] = spare(plain or "_", folders.values())
    return folders


def spare(name: str, taken: Iterable[str]) -> str:
    """The name, with marks behind it until no other has it; case does not make names differ."""
    folded = {other.casefold() for other in taken}
    while name.casefold() in folded:
        name += "_"
    return name
