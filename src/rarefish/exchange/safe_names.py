"""Names that are valid in every tool: for image paths in text, for files, folders and answers without a class."""

import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from rarefish.data.image_io import SUFFIXES

MAX_FOLDER_BYTES = 80


def path_to_text(path: bytes) -> str:
    """Returns the path as text; if it is not UTF-8 or not printable, its bytes are percent-encoded as in a URL."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return quote(path, safe="/ ")
    return text if text.isprintable() else quote(path, safe="/ ")


def to_file_name(image: int, path: bytes) -> str:
    """Returns a file name that is made from the image's number and valid on every file system."""
    suffix = os.fsdecode(os.path.splitext(path)[1]).lower()
    return f"{image:08d}{suffix if suffix in SUFFIXES else '.png'}"


def to_folder_names(classes: Sequence[str]) -> dict[str, str]:
    """Returns a unique folder name per class, with underscores for characters that some file systems reject."""
    folders: dict[str, str] = {}
    for name in classes:
        plain = re.sub(r'[\\/:*?"<>|]', "_", name).strip(". ")
        while len(plain.encode()) > MAX_FOLDER_BYTES:
            plain = plain[:-1]
        folders[name] = make_unique(plain or "_", folders.values())
    return folders


def make_unique(name: str, taken: Iterable[str]) -> str:
    """Returns the name, with underscores appended until it differs from all of `taken`, ignoring case."""
    folded = {other.casefold() for other in taken}
    while name.casefold() in folded:
        name += "_"
    return name
