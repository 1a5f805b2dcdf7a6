"""Import labels from the formats of other tools: all labels of a file in one transaction, each of them once."""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from rarefish.data.image_io import printable
from rarefish.errors import ArgumentError, DataError, nearest
from rarefish.exchange.formats.coco import read_coco
from rarefish.exchange.formats.csv_table import read_table
from rarefish.exchange.formats.cvat import read_cvat
from rarefish.exchange.formats.fiftyone import read_samples
from rarefish.exchange.formats.huggingface import read_dataset
from rarefish.exchange.formats.image_folder import read_folders
from rarefish.exchange.formats.label_studio import read_tasks
from rarefish.exchange.label_parsing import ParsedLabel
from rarefish.exchange.safe_names import path_to_text
from rarefish.workspace.answers import (
    ANSWERS,
    check_name,
    current_answer,
    find_label,
    find_ticket,
    last_label,
    record,
    settled,
)
from rarefish.workspace.indexed_files import (
    content_hashes,
    find_by_hash,
    find_by_paths,
    is_picked,
    picked_paths,
    pool_hash,
)
from rarefish.workspace.indexing import show
from rarefish.workspace.store import Store, now

READERS: dict[str, Callable[[Path, list[str]], Iterator[ParsedLabel]]] = {
    "csv": read_table,
    "imagefolder": read_folders,
    "coco": read_coco,
    "cvat": read_cvat,
    "label-studio": read_tasks,
    "fiftyone": read_samples,
    "huggingface": read_dataset,
}
DEFAULT_WHO = "imported"
"""The annotator of a label if neither the file nor the caller names one."""
WITHOUT_OWN_FIELDS = ("imagefolder", "cvat")
"""Formats that cannot contain our own fields, so that any such file may be one of our exports."""


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    count: int
    """Number of new labels."""
    already: int
    """Number of labels that the workspace already had."""
    unknown: tuple[str, ...]
    """One message per label that was left out because its image or class is unknown or its image was not selected."""
    conflicts: tuple[str, ...]
    """One message per label that was left out because it contradicts a later answer of the same person."""


@dataclass(frozen=True)
class ResolvedLabel:
    """A label whose image and class are known."""

    where: str
    image: int
    who: str
    answer: str
    number: int | None
    made_at: str
    ticket: str


def import_labels(store: Store, format: str, source: Path, who: str | None = None) -> Imported:
    """Imports the labels of a file.

    Args:
        store: The workspace.
        format: A key of `READERS`.
        source: File or folder to read.
        who: The annotator of labels for which the file names none. Without it, such a label does not count as a
            separate vote if it may come from our own export and agrees with the majority.
    """
    if format not in READERS:
        raise ArgumentError(f"Unknown format {format!r}. {nearest(format, READERS)}")
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    return import_parsed_labels(store, format, READERS[format](source, store.classes()), who)


def import_parsed_labels(store: Store, format: str, parsed: Iterable[ParsedLabel], who: str | None = None) -> Imported:
    """Imports labels from any source. Reads all of them before the store is locked."""
    name = DEFAULT_WHO if who is None else who
    check_name(name)
    parsed, settings = list(parsed), store.settings()
    numbers = _find_classes(parsed, store.classes())
    majority = settled(store) if who is None else {}
    already = 0
    resolved: list[ResolvedLabel] = []
    unknown: list[str] = []
    with store.writing() as connection:
        escaped = escaped_paths(connection)
        for label in parsed:
            try:
                image = find_image(connection, label, settings.get("pool_root", ""), escaped)
                number = numbers[label.answer, label.name]
                if isinstance(number, str):
                    raise UnresolvedLabel(number)
                if number is not None and majority.get(image) == number and _may_be_own_export(label, format):
                    already += 1
                else:
                    resolved.append(_resolve(label, image, number, label.who or name, format))
            except UnresolvedLabel as reason:
                unknown.append(f"{printable(label.where)}: {reason}")
        resolved, conflicts = _drop_contradictions(resolved)
        outcomes = [_store(connection, label) for label in resolved]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, str)]
    return Imported(outcomes.count(True), already + outcomes.count(False), tuple(unknown), (*conflicts, *refusals))


def _find_classes(parsed: list[ParsedLabel], classes: list[str]) -> dict[tuple[str, str], int | str | None]:
    """Returns the class number of every (answer, name) pair, or a message that says why there is none.

    Each pair is looked up once, before the store is locked, because finding the most similar of many names is slow.
    """
    numbers: dict[tuple[str, str], int | str | None] = {}
    for label in parsed:
        if (label.answer, label.name) not in numbers:
            try:
                numbers[label.answer, label.name] = find_class(label, classes)
            except UnresolvedLabel as reason:
                numbers[label.answer, label.name] = str(reason)
    return numbers


def _may_be_own_export(label: ParsedLabel, format: str) -> bool:
    """Returns whether the label names no annotator and may come from our own export."""
    return not label.who and (format in WITHOUT_OWN_FIELDS or (label.image is not None and bool(label.hash)))


def _resolve(label: ParsedLabel, image: int, number: int | None, who: str, format: str) -> ResolvedLabel:
    try:
        check_name(who)
    except ArgumentError as error:
        raise UnresolvedLabel(str(error)) from error
    identity = json.dumps([format, label.key, image, who, label.answer, number, label.made_at])
    ticket = f"{format}:{blake2b(identity.encode(), digest_size=16).hexdigest()}"
    return ResolvedLabel(printable(label.where), image, who, label.answer, number, label.made_at, ticket)


def _drop_contradictions(labels: list[ResolvedLabel]) -> tuple[list[ResolvedLabel], list[str]]:
    """Returns the labels in order of time, and one message per contradiction.

    If a person gave an image different answers, the latest is kept, or none if their times are missing or equal.
    """
    by_person: dict[tuple[int, str], list[ResolvedLabel]] = defaultdict(list)
    for label in labels:
        by_person[label.image, label.who].append(label)
    kept, conflicts = [], []
    for (image, who), group in by_person.items():
        times = [label.made_at for label in group]
        if len({(label.answer, label.number) for label in group}) == 1:
            kept += group
        elif not all(times) or len(set(times)) < len(times):
            places = " and ".join(label.where for label in group[:3])
            conflicts.append(
                f"{places}: {who} gave different answers for image {image}. Keep one of them, or add times."
            )
        else:
            kept.append(max(group, key=lambda label: label.made_at))
    return sorted(kept, key=lambda label: label.made_at), conflicts


def _store(connection: sqlite3.Connection, label: ResolvedLabel) -> bool | str:
    """Stores a label. Returns whether it is new, or a message that says why it was left out."""
    key = (label.image, label.who)
    current = current_answer(connection, *key)
    if current and (current["answer"], current["class"]) == (label.answer, label.number):
        return False
    if find_ticket(connection, label.ticket):
        change = "given another answer" if current else "undone this answer"
        return f"{label.where}: {label.who} has {change} since this was imported. The later action counts."
    if current and label.answer == "skip":
        return (
            f"{label.where}: {label.who} has already answered image {label.image}, and a skip does not undo an answer."
        )
    last = last_label(connection, *key)
    if last and last["answer"] == "undo" and _is_undone(connection, label, last):
        return (
            f"{label.where}: {label.who} undid this answer at {last['made_at']}. Answer again, or give it a later time."
        )
    if last and label.made_at and label.made_at < last["made_at"]:
        return f"{label.where}: {label.who} gave another answer at {last['made_at']}. The later answer counts."
    made_at = min(label.made_at or now(), now())  # the clock of another machine may be ahead
    record(connection, label.image, label.who, label.answer, label.number, label.ticket, made_at=made_at)
    return True


def _is_undone(connection: sqlite3.Connection, label: ResolvedLabel, undo: sqlite3.Row) -> bool:
    """Returns whether the label was made before the undo; without a time, whether it equals the undone answer."""
    if label.made_at:
        return label.made_at <= undo["made_at"]
    undone = find_label(connection, undo["undoes"])
    return (undone["answer"], undone["class"]) == (label.answer, label.number)


class UnresolvedLabel(Exception):  # noqa: N818 - caught inside this package
    """A label whose image or class cannot be determined; the message says why."""


def escaped_paths(connection: sqlite3.Connection) -> dict[str, list[int]]:
    """Returns the selected images whose paths are percent-encoded in exports, keyed by the encoded path."""
    escaped: dict[str, list[int]] = defaultdict(list)
    for image, path in picked_paths(connection):
        if os.fsencode(path_to_text(path)) != path:
            escaped[path_to_text(path)].append(image)
    return escaped


def find_image(connection: sqlite3.Connection, label: ParsedLabel, root: str, escaped: dict[str, list[int]]) -> int:
    """Returns the number of the selected image that a label refers to.

    A label may contain the image's number, hash and path; if there are several, they must agree.

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
        raise UnresolvedLabel("it does not identify an image.")
    if matches and not content_hashes(connection, {image}) & content_hashes(connection, matches):
        named = f"image {image}" if label.image is not None else f"the hash {label.hash[:40]}"
        raise UnresolvedLabel(
            f"{named} and {show(path[:200])} are different images of this workspace. Keep only the right one."
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
                f"there is no class {label.name!r}; {name!r} differs in case. Rename the class in the file."
            )
    raise UnresolvedLabel(f"there is no class {label.name[:80]!r}. {nearest(label.name, classes)}")


def _by_number(connection: sqlite3.Connection, image: int, hash_: str) -> int:
    known = pool_hash(connection, image)
    if known is None:
        raise UnresolvedLabel(f"the pool has no image {image}.")
    if hash_ and hash_ != known:
        raise UnresolvedLabel(
            f"image {image} of this workspace has different content. The file belongs to another workspace."
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
    if not found and below.startswith(os.path.basename(root) + b"/"):  # relative to the parent of the pool's folder
        found = find_by_paths(connection, (below.partition(b"/")[2],))
    if not found and (below == b".." or below.startswith(b"../")):
        raise UnresolvedLabel(f"{show(path[:200])} is outside the pool's folder {show(root)}.")
    if not found:
        raise UnresolvedLabel(f"the pool has no image {show(path[:200])}.")
    return found
