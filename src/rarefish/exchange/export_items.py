"""The images of an export, each with its file, the reason why it was selected, and the answers people gave."""

import json
import os
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rarefish.errors import ArgumentError, DataError, nearest
from rarefish.workspace.answers import current_answers, settled
from rarefish.workspace.indexed_files import has_changed
from rarefish.workspace.indexing import show
from rarefish.workspace.round_history import read_picks
from rarefish.workspace.store import Store


@dataclass(frozen=True)
class Answer:
    """The current answer of one person about one image."""

    who: str
    answer: str
    name: str
    """Name of the class if `answer` is "class", otherwise empty."""
    made_at: str


@dataclass(frozen=True)
class Item:
    """An image that was selected for labeling. Classes are given by name."""

    image: int
    file: bytes
    """Path of the file, as bytes because file names need not be UTF-8."""
    path: bytes
    """Path relative to the root of the pool."""
    url: str
    """URL of the image, for tools that fetch images."""
    hash: str
    num_bytes: int
    modified: int
    """Modification time of the file when it was indexed; `hash` and `num_bytes` describe its content at that time."""
    width: int
    height: int
    round: int
    rank: int
    similarity: float
    center: int | None
    center_class: str | None
    guess: str | None
    probabilities: tuple[tuple[str, float], ...]
    is_open: bool
    label: str | None
    """The class that most people chose."""
    answers: tuple[Answer, ...]

    @property
    def prediction(self) -> tuple[str | None, float | None]:
        """The most likely class and its probability, or `guess` and None if no probabilities are known."""
        return max(self.probabilities, key=lambda pair: pair[1]) if self.probabilities else (self.guess, None)

    @property
    def own_fields(self) -> dict[str, object]:
        """The fields that other tools preserve, so that an import can identify the image."""
        names = ("image", "hash", "round", "similarity", "center")
        return {name: getattr(self, name) for name in names}


LOCAL_FILES_URL = "/data/local-files/?d="
"""URL prefix under which Label Studio serves files below its document root, which must contain the pool's folder."""
ONLY_ANSWERED = {
    "picks": False,
    "labels": True,
}
"""Whether an export of this kind contains only images with an answer."""


def read_items(store: Store, what: str, url_prefix: str = "") -> list[Item]:
    """Returns the images to export, ordered by round and rank.

    Raises:
        DataError: If there are none.
    """
    if what not in ONLY_ANSWERED:
        raise ArgumentError(f"Cannot export {what!r}. {nearest(what, ONLY_ANSWERED)}")
    classes, labels, root = store.classes(), settled(store), os.fsencode(store.settings().get("pool_root", ""))
    prefix = url_prefix or f"{LOCAL_FILES_URL}{quote(os.path.basename(root))}/"
    answers: dict[int, list[Answer]] = defaultdict(list)
    with store.reading() as connection:
        for row in current_answers(connection):
            name = "" if row["class"] is None else classes[row["class"]]
            answers[row["image"]].append(Answer(row["who"], row["answer"], name, row["made_at"]))
        rows = read_picks(connection, only_answered=ONLY_ANSWERED[what])
    if not rows:
        raise DataError(f"The workspace {store.folder} has no {what} yet. Run: rarefish select {store.folder}")
    return [_to_item(row, root, prefix, classes, labels.get(row["image"]), answers[row["image"]]) for row in rows]


def drop_changed(items: list[Item]) -> tuple[list[Item], list[str]]:
    """Returns the images whose files are unchanged since indexing, and one message per image left out.

    A changed file is left out because its labels belong to the earlier content.
    """
    changed = [item for item in items if _has_changed(item)]
    if items and len(changed) == len(items):
        raise DataError(
            f"All {len(items)} images have changed since they were indexed, such as {show(items[0].path)}. "
            "Restore the original files."
        )
    messages = [f"{show(item.path)} has changed since it was indexed. Restore the original file." for item in changed]
    left_out = {item.image for item in changed}
    return [item for item in items if item.image not in left_out], messages


def read_image(item: Item) -> bytes:
    """Returns the bytes of the image's file."""
    try:
        with open(item.file, "rb") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(item, error) from error


def _has_changed(item: Item) -> bool:
    try:
        return has_changed(Path(os.fsdecode(item.file)), item.num_bytes, item.modified, item.hash, deep=True)
    except OSError as error:
        raise _unreadable(item, error) from error


def _unreadable(item: Item, error: OSError) -> DataError:
    return DataError(
        f"{show(item.file)} cannot be read: {error.strerror or error}. Restore it, or index the pool again."
    )


def _to_item(
    row: sqlite3.Row, root: bytes, url_prefix: str, classes: list[str], label: int | None, answers: list[Answer]
) -> Item:
    def name(number: int | None) -> str | None:
        return None if number is None else classes[number]

    columns = ("image", "hash", "num_bytes", "modified", "width", "height", "round", "rank", "similarity", "center")
    return Item(
        **{field: row[field] for field in columns},
        file=os.path.join(root, row["path"]),
        path=row["path"],
        url=url_prefix + quote(row["path"]),
        center_class=name(row["center_class"]),
        guess=name(row["guess"]),
        probabilities=tuple(
            (classes[number], float(probability)) for number, probability in json.loads(row["probabilities"])
        ),
        is_open=bool(row["is_open"]),
        label=name(label),
        answers=tuple(answers),
    )
