"""Which image and which class of a workspace a label from elsewhere means."""

import os
import sqlite3
from collections import defaultdict

from rarefish.errors import nearest
from rarefish.exchange.found import Found
from rarefish.exchange.names import to_name
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


class Unknown(Exception):  # noqa: N818 - it never leaves this package
    """Why a label cannot be taken in, as a sentence."""


def odd_names(connection: sqlite3.Connection) -> dict[str, list[int]]:
    """Names in text of images that were asked about and whose paths are not plain text."""
    found: dict[str, list[int]] = defaultdict(list)
    for image, path in picked_paths(connection):
        if os.fsencode(to_name(path)) != path:
            found[to_name(path)].append(image)
    return found


def find_image(connection: sqlite3.Connection, one: Found, root: str, odd: dict[str, list[int]]) -> int:
    """The image that was asked about, by number, hash and path; those of them that are given must agree."""
    path = one.path or b""
    there = _by_path(connection, path, os.fsencode(root), odd) if path else set[int]()
    if one.image is not None:
        image = _by_number(connection, one.image, one.hash)
    elif one.hash:
        image = _by_hash(connection, one.hash)
    elif len(there) == 1:
        image = min(there)
    elif there:
        raise Unknown(f"{show(path[:200])} may mean the images {', '.join(map(str, sorted(there)))}.")
    else:
        raise Unknown("it names no image.")
    if there and not content_hashes(connection, {image}) & content_hashes(connection, there):
        named = f"image {image}" if one.image is not None else f"the hash {one.hash[:40]}"
        raise Unknown(f"{named} and {show(path[:200])} are two images of this workspace. Keep the one that is meant.")
    if not is_picked(connection, image):
        raise Unknown(f"nobody asked about image {image}. Only images that a round chose can be labeled.")
    return image


def find_class(one: Found, classes: list[str]) -> int | None:
    """The class's number; None where the answer is another."""
    if one.answer not in ANSWERS:
        raise Unknown(f"an answer is one of {', '.join(ANSWERS)}, not {one.answer[:40]!r}.")
    if one.answer != "class":
        if one.name:
            raise Unknown(f"the answer {one.answer} goes without a class, but there is {one.name[:40]!r}.")
        return None
    if one.name in classes:
        return classes.index(one.name)
    for name in classes:
        if name.casefold() == one.name.casefold():
            raise Unknown(f"there is no class {one.name!r}, but {name!r}: they differ in case. Rename it in the file.")
    raise Unknown(f"there is no class {one.name[:80]!r}. {nearest(one.name, classes)}")


def _by_number(connection: sqlite3.Connection, image: int, hash_: str) -> int:
    known = pool_hash(connection, image)
    if known is None:
        raise Unknown(f"the pool has no image {image}.")
    if hash_ and hash_ != known:
        raise Unknown(f"image {image} of this workspace has another content. The file belongs to another workspace.")
    return image


def _by_hash(connection: sqlite3.Connection, hash_: str) -> int:
    if not hash_.isascii():
        raise Unknown(f"{hash_[:40]!r} is no hash.")
    image = find_by_hash(connection, hash_)
    if image is None:
        raise Unknown("the pool has no image with this content.")
    return image


def _by_path(connection: sqlite3.Connection, path: bytes, root: bytes, odd: dict[str, list[int]]) -> set[int]:
    """All that it may mean, one at least."""
    if b"\0" in path:
        raise Unknown(f"{show(path[:200])} is no path.")
    inside = os.path.normpath(os.path.join(root, path))
    below = os.path.relpath(inside, root)
    found = find_by_paths(connection, (path, below)) | set(odd.get(os.fsdecode(path), ()))
    if not found and below.startswith(os.path.basename(root) + b"/"):  # as seen from the folder above the pool's
        found = find_by_paths(connection, (below.partition(b"/")[2],))
    if not found and (below == b".." or below.startswith(b"../")):
        raise Unknown(f"{show(path[:200])} lies outside of the pool's folder {show(root)}.")
    if not found:
        raise Unknown(f"the pool has no image {show(path[:200])}.")
    return found
