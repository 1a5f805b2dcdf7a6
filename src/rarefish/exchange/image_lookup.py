"""Looks up the image and the class of a workspace that an imported label refers to."""

import os
import sqlite3
from collections import defaultdict

from rarefish.errors import nearest
from rarefish.exchange.names import path_to_text
from rarefish.exchange.parsed_labels import ParsedLabel
from rarefish.workspace.answers import ANSWERS
from rarefish.workspace.indexed_files import (
    content_hashes,
    find_by_hash,
    find_by_paths,
    is_picked,
    picked_paths,
    pool_hash,
)
from rarefish.workspace.indexing import show


class UnresolvedLabel(Exception):  # noqa: N818 - caught inside this package
    """A label whose image or class cannot be determined; the message says why."""


def escaped_paths(connection: sqlite3.Connection) -> dict[str, list[int]]:
    """Returns the selected images whose paths are percent-encoded in exports, by the encoded path."""
    escaped: dict[str, list[int]] = defaultdict(list)
    for image, path in picked_paths(connection):
        if os.fsencode(path_to_text(path)) != path:
            escaped[path_to_text(path)].append(image)
    return escaped


def find_image(connection: sqlite3.Connection, label: ParsedLabel, root: str, escaped: dict[str, list[int]]) -> int:
    """Returns the number of the selected image that a label refers to.

    A label may give the image's number, hash and path; those that are given must agree.

    Args:
        connection: Connection to the workspace's store.
        label: The parsed label.
        root: Root folder of the pool.
        escaped: The result of `escaped_paths`.
    """
    path = label.path or b""
    matches = _by_path(connection, path, os.fsencode(root), escaped) if path else set[int]()
    if label.image is not None:
        image = _by_number(connection, label.image, label.hash)
    elif label.hash:
        image = _by_hash(connection, label.hash)
    elif len(matches) == 1:
        image = min(matches)
    elif matches:
        raise UnresolvedLabel(f"{show(path[:200])} may refer to the images {', '.join(map(str, sorted(matches)))}.")
    else:
        raise UnresolvedLabel("it names no image.")
    if matches and not content_hashes(connection, {image}) & content_hashes(connection, matches):
        named = f"image {image}" if label.image is not None else f"the hash {label.hash[:40]}"
        raise UnresolvedLabel(
            f"{named} and {show(path[:200])} are two images of this workspace. Keep only the right one."
        )
    if not is_picked(connection, image):
        raise UnresolvedLabel(f"image {image} was not selected in any round. Only selected images can be labeled.")
    return image


def find_class(label: ParsedLabel, classes: list[str]) -> int | None:
    """Returns the number of the label's class, or None if its answer is not a class."""
    if label.answer not in ANSWERS:
        raise UnresolvedLabel(f"an answer must be one of {', '.join(ANSWERS)}, not {label.answer[:40]!r}.")
    if label.answer != "class":
        if label.name:
            raise UnresolvedLabel(f"the answer {label.answer} takes no class, but the file gives {label.name[:40]!r}.")
        return None
    if label.name in classes:
        return classes.index(label.name)
    for name in classes:
        if name.casefold() == label.name.casefold():
            raise UnresolvedLabel(
                f"there is no class {label.name!r}, but {name!r}, which differs in case. Rename it in the file."
            )
    raise UnresolvedLabel(f"there is no class {label.name[:80]!r}. {nearest(label.name, classes)}")


def _by_number(connection: sqlite3.Connection, image: int, hash_: str) -> int:
    known = pool_hash(connection, image)
    if known is None:
        raise UnresolvedLabel(f"the pool has no image {image}.")
    if hash_ and hash_ != known:
        raise UnresolvedLabel(
            f"image {image} of this workspace has other content. The file belongs to another workspace."
        )
    return image


def _by_hash(connection: sqlite3.Connection, hash_: str) -> int:
    if not hash_.isascii():
        raise UnresolvedLabel(f"{hash_[:40]!r} is not a hash.")
    image = find_by_hash(connection, hash_)
    if image is None:
        raise UnresolvedLabel("the pool has no image with this content.")
    return image


def _by_path(connection: sqlite3.Connection, path: bytes, root: bytes, escaped: dict[str, list[int]]) -> set[int]:
    """Returns all images that the path may refer to, at least one."""
    if b"\0" in path:
        raise UnresolvedLabel(f"{show(path[:200])} is not a valid path.")
    inside = os.path.normpath(os.path.join(root, path))
    below = os.path.relpath(inside, root)
    found = find_by_paths(connection, (path, below)) | set(escaped.get(os.fsdecode(path), ()))
    if not found and below.startswith(os.path.basename(root) + b"/"):  # relative to the folder above the pool's
        found = find_by_paths(connection, (below.partition(b"/")[2],))
    if not found and (below == b".." or below.startswith(b"../")):
        raise UnresolvedLabel(f"{show(path[:200])} is outside the pool's folder {show(root)}.")
    if not found:
        raise UnresolvedLabel(f"the pool has no image {show(path[:200])}.")
    return found
