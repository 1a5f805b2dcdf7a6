"""Labels read from the forms of other tools: all of a file in one transaction, each of them once."""

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
from rarefish.exchange.found import Found
from rarefish.exchange.lookup import Unknown, find_class, find_image, odd_names
from rarefish.workspace.answers import check_name, find_label, find_ticket, last_label, record, settled, standing_answer
from rarefish.workspace.store import Store, now

READERS: dict[str, Callable[[Path, list[str]], Iterator[Found]]] = {
    "csv": read_table,
    "imagefolder": read_folders,
    "coco": read_coco,
    "cvat": read_cvat,
    "label-studio": read_tasks,
    "fiftyone": read_samples,
    "huggingface": read_dataset,
}
NAMELESS = "imported"
"""Who gave labels of which nobody says it."""
BARE = ("imagefolder", "cvat")
"""Forms without a place for our own fields: any such file may be an export of ours."""


@dataclass(frozen=True)
class Imported:
    """What came of a file."""

    count: int
    """Labels that are new."""
    already: int
    """Labels that stood there before."""
    unknown: tuple[str, ...]
    """Sentences on those whose image or class is not known, or was not asked about: they are left out."""
    conflicts: tuple[str, ...]
    """Sentences on those that say otherwise than a later answer of the same person: they are left out."""


@dataclass(frozen=True)
class Label:
    """A label that can be taken in."""

    where: str
    image: int
    who: str
    answer: str
    number: int | None
    made_at: str
    ticket: str


def import_labels(store: Store, form: str, source: Path, who: str | None = None) -> Imported:
    """Takes a file's labels in; `who` gave those of which the file does not say it.

    Without `who`, such a label of ours that says what most people say is no vote of its own: it is there already.
    """
    if form not in READERS:
        raise ArgumentError(f"There is no form {form!r}. {nearest(form, READERS)}")
    if not source.exists():
        raise DataError(f"There is no {source}.")
    return take_in(store, form, READERS[form](source, store.classes()), who)


def take_in(store: Store, form: str, found: Iterable[Found], who: str | None = None) -> Imported:
    """The same of labels from anywhere; they are all read before the store is touched."""
    name = NAMELESS if who is None else who
    check_name(name)
    found, settings = list(found), store.settings()
    numbers = _find_classes(found, store.classes())
    known = settled(store) if who is None else {}
    already = 0
    labels: list[Label] = []
    unknown: list[str] = []
    with store.writing() as connection:
        odd = odd_names(connection)
        for one in found:
            try:
                image = find_image(connection, one, settings.get("pool_root", ""), odd)
                number = numbers[one.answer, one.name]
                if isinstance(number, str):
                    raise Unknown(number)
                if number is not None and known.get(image) == number and _is_echo(one, form):
                    already += 1
                else:
                    labels.append(_to_label(one, image, number, one.who or name, form))
            except Unknown as reason:
                unknown.append(f"{printable(one.where)}: {reason}")
        labels, conflicts = _without_clashes(labels)
        outcomes = [_take(connection, label) for label in labels]
    told = [outcome for outcome in outcomes if isinstance(outcome, str)]
    return Imported(outcomes.count(True), already + outcomes.count(False), tuple(unknown), (*conflicts, *told))


def _find_classes(found: list[Found], classes: list[str]) -> dict[tuple[str, str], int | str | None]:
    """The number of the class of every (answer, name) in a file, or a sentence on why there is none.

    Each is looked up once, before the store is held: to find the nearest name takes long where there are many classes.
    """
    numbers: dict[tuple[str, str], int | str | None] = {}
    for one in found:
        if (one.answer, one.name) not in numbers:
            try:
                numbers[one.answer, one.name] = find_class(one, classes)
            except Unknown as reason:
                numbers[one.answer, one.name] = str(reason)
    return numbers


def _is_echo(one: Found, form: str) -> bool:
    """Whether it may be what we exported ourselves, with nobody's name on it."""
    return not one.who and (form in BARE or (one.image is not None and bool(one.hash)))


def _to_label(one: Found, image: int, number: int | None, who: str, form: str) -> Label:
    try:
        check_name(who)
    except ArgumentError as error:
        raise Unknown(str(error)) from error
    identity = json.dumps([form, one.key, image, who, one.answer, number, one.made_at])
    ticket = f"{form}:{blake2b(identity.encode(), digest_size=16).hexdigest()}"
    return Label(printable(one.where), image, who, one.answer, number, one.made_at, ticket)


def _without_clashes(labels: list[Label]) -> tuple[list[Label], list[str]]:
    """Labels in the order they were made. Of one person's that differ the last counts, or none if no times tell it."""
    by_person: dict[tuple[int, str], list[Label]] = defaultdict(list)
    for label in labels:
        by_person[label.image, label.who].append(label)
    kept, told = [], []
    for (image, who), group in by_person.items():
        times = [label.made_at for label in group]
        if len({(label.answer, label.number) for label in group}) == 1:
            kept += group
        elif not all(times) or len(set(times)) < len(times):
            places = " and ".join(label.where for label in group[:3])
            told.append(f"{places}: {who} says different things of image {image}. Keep one of them, or add times.")
        else:
            kept.append(max(group, key=lambda label: label.made_at))
    return sorted(kept, key=lambda label: label.made_at), told


def _take(connection: sqlite3.Connection, label: Label) -> bool | str:
    """Whether it is new, or a sentence on why it was left out."""
    whose = (label.image, label.who)
    stands = standing_answer(connection, *whose)
    if stands and (stands["answer"], stands["class"]) == (label.answer, label.number):
        return False
    if find_ticket(connection, label.ticket):
        what = "answered otherwise" if stands else "taken back"
        return f"{label.where}: {label.who} has {what} since this was imported. The later answer stays."
    if stands and label.answer == "skip":
        return f"{label.where}: {label.who} has answered image {label.image}, which a skip does not take back."
    last = last_label(connection, *whose)
    if last and last["answer"] == "undo" and _is_undone(connection, label, last):
        return f"{label.where}: {label.who} took this back at {last['made_at']}. Answer anew, or give it a later time."
    if last and label.made_at and label.made_at < last["made_at"]:
        return f"{label.where}: {label.who} answered otherwise at {last['made_at']}. The later answer stays."
    made_at = min(label.made_at or now(), now())  # another machine's clock may be ahead
    record(connection, label.image, label.who, label.answer, label.number, label.ticket, made_at=made_at)
    return True


def _is_undone(connection: sqlite3.Connection, label: Label, undo: sqlite3.Row) -> bool:
    """Whether it is from before the undo; one without a time is, if it says what was taken back."""
    if label.made_at:
        return label.made_at <= undo["made_at"]
    was = find_label(connection, undo["undoes"])
    return (was["answer"], was["class"]) == (label.answer, label.number)
