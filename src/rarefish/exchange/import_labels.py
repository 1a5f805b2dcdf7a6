"""Imports labels from the formats of other tools: all labels of a file in one transaction, each of them once."""

import json
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
from rarefish.exchange.image_lookup import UnresolvedLabel, escaped_paths, find_class, find_image
from rarefish.exchange.parsed_labels import ParsedLabel
from rarefish.workspace.answers import check_name, find_label, find_ticket, last_label, record, settled, standing_answer
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
"""The annotator of labels for which neither the file nor the caller names one."""
WITHOUT_OWN_FIELDS = ("imagefolder", "cvat")
"""Formats that cannot hold our own fields, so any such file may be an export of ours."""


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    count: int
    """Number of new labels."""
    already: int
    """Number of labels that the workspace already had."""
    unknown: tuple[str, ...]
    """One message per label left out because its image or class is unknown or its image was not selected."""
    conflicts: tuple[str, ...]
    """One message per label left out because it contradicts a later answer of the same person."""


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
        who: The annotator of labels for which the file names none. Without it, such a label does not count as a vote
            of its own if it may come from our own export and agrees with the majority: it is counted as present.
    """
    if format not in READERS:
        raise ArgumentError(f"Unknown format {format!r}. {nearest(format, READERS)}")
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    return import_parsed_labels(store, format, READERS[format](source, store.classes()), who)


def import_parsed_labels(store: Store, format: str, parsed: Iterable[ParsedLabel], who: str | None = None) -> Imported:
    """Imports labels from any source. All of them are read before the store is locked."""
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

    Each pair is looked up once, before the store is locked, since finding the nearest of many class names is slow.
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
    """Whether the label names no annotator and may come from our own export."""
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
    """Returns the labels by time, and one message per contradiction.

    If one person gave an image different answers, the latest is kept, or none if their times are missing or equal.
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
            conflicts.append(f"{places}: {who} gives image {image} different answers. Keep one of them, or add times.")
        else:
            kept.append(max(group, key=lambda label: label.made_at))
    return sorted(kept, key=lambda label: label.made_at), conflicts


def _store(connection: sqlite3.Connection, label: ResolvedLabel) -> bool | str:
    """Stores a label. Returns whether it is new, or a message that says why it was left out."""
    key = (label.image, label.who)
    current = standing_answer(connection, *key)
    if current and (current["answer"], current["class"]) == (label.answer, label.number):
        return False
    if find_ticket(connection, label.ticket):
        change = "given another answer" if current else "undone this answer"
        return f"{label.where}: {label.who} has {change} since this was imported. The later action counts."
    if current and label.answer == "skip":
        return f"{label.where}: {label.who} has answered image {label.image}, and a skip does not undo an answer."
    last = last_label(connection, *key)
    if last and last["answer"] == "undo" and _is_undone(connection, label, last):
        return (
            f"{label.where}: {label.who} undid this answer at {last['made_at']}. Answer again, or give it a later time."
        )
    if last and label.made_at and label.made_at < last["made_at"]:
        return f"{label.where}: {label.who} gave another answer at {last['made_at']}. The later answer counts."
    made_at = min(label.made_at or now(), now())  # another machine's clock may be ahead
    record(connection, label.image, label.who, label.answer, label.number, label.ticket, made_at=made_at)
    return True


def _is_undone(connection: sqlite3.Connection, label: ResolvedLabel, undo: sqlite3.Row) -> bool:
    """Whether the label was made before the undo. One without a time was if it equals the undone answer."""
    if label.made_at:
        return label.made_at <= undo["made_at"]
    undone = find_label(connection, undo["undoes"])
    return (undone["answer"], undone["class"]) == (label.answer, label.number)
