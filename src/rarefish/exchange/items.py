"""What is exported: an image that was asked about, why it was chosen, and what people said."""

import json
import os
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rarefish.errors import ArgumentError, DataError, nearest
from rarefish.workspace.answers import settled, standing_answers
from rarefish.workspace.history import read_picks
from rarefish.workspace.indexed_files import has_changed
from rarefish.workspace.indexing import show
from rarefish.workspace.store import Store


@dataclass(frozen=True)
class Said:
    """One person's standing answer."""

    who: str
    answer: str
    name: str
    """The class, where the answer is one."""
    made_at: str


@dataclass(frozen=True)
class Item:
    """An image that was asked about; classes go by their names."""

    image: int
    file: bytes
    """Where it lies; a file's name need not be UTF-8."""
    path: bytes
    """The same, relative to the pool's root."""
    url: str
    """Its address, for tools that fetch images."""
    hash: str
    num_bytes: int
    modified: int
    """Size and time of the file when it was indexed, as hash is of its content."""
    width: int
    height: int
    round: int
    rank: int
    similarity: float
    center: int | None
    center_class: str | None
    guess: str | None
    chances: tuple[tuple[str, float], ...]
    is_open: bool
    label: str | None
    """What most people say it is."""
    said: tuple[Said, ...]

    @property
    def prediction(self) -> tuple[str | None, float | None]:
        """The likeliest class with its chance; the model's guess where no chances are known."""
        return max(self.chances, key=lambda pair: pair[1]) if self.chances else (self.guess, None)

    @property
    def own_fields(self) -> dict[str, object]:
        """What other tools carry along for us, so that the image is known again."""
        names = ("image", "hash", "round", "similarity", "center")
        return {name: getattr(self, name) for name in names}


LOCAL = "/data/local-files/?d="
"""Label Studio's own address of files below its document root, which must lie above the pool's folder."""
WHAT = {
    "picks": False,
    "labels": True,
}
"""What can be exported, and whether that is only images with an answer."""


def read_items(store: Store, what: str, url_prefix: str = "") -> list[Item]:
    """The images by round and rank; none at all is an error that says so."""
    if what not in WHAT:
        raise ArgumentError(f"There are no {what!r} to export. {nearest(what, WHAT)}")
    classes, labels, root = store.classes(), settled(store), os.fsencode(store.settings().get("pool_root", ""))
    prefix = url_prefix or f"{LOCAL}{quote(os.path.basename(root))}/"
    said: dict[int, list[Said]] = defaultdict(list)
    with store.reading() as connection:
        for row in standing_answers(connection):
            name = "" if row["class"] is None else classes[row["class"]]
            said[row["image"]].append(Said(row["who"], row["answer"], name, row["made_at"]))
        rows = read_picks(connection, only_answered=WHAT[what])
    if not rows:
        raise DataError(f"The workspace {store.folder} has no {what} yet. Run: rarefish select {store.folder}")
    return [_to_item(row, root, prefix, classes, labels.get(row["image"]), said[row["image"]]) for row in rows]


def sift(items: list[Item]) -> tuple[list[Item], list[str]]:
    """The images whose files are what was indexed, and a sentence on each other: people labeled another file there."""
    changed = [item for item in items if _has_changed(item)]
    if items and len(changed) == len(items):
        raise DataError(
            f"All {len(items)} images changed since they were indexed, such as {show(items[0].path)}. "
            "Put the files of then back."
        )
    told = [f"{show(item.path)} changed since it was indexed. Put the file of then back." for item in changed]
    left_out = {item.image for item in changed}
    return [item for item in items if item.image not in left_out], told


def content(item: Item) -> bytes:
    """The bytes of the image's file."""
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
    return DataError(f"{show(item.file)} cannot be read: {error.strerror or error}. Put it back, or index anew.")


def _to_item(
    row: sqlite3.Row, root: bytes, url_prefix: str, classes: list[str], label: int | None, said: list[Said]
) -> Item:
    def name(number: int | None) -> str | None:
        return None if number is None else classes[number]

    same = ("image", "hash", "num_bytes", "modified", "width", "height", "round", "rank", "similarity", "center")
    return Item(
        **{field: row[field] for field in same},
        file=os.path.join(root, row["path"]),
        path=row["path"],
        url=url_prefix + quote(row["path"]),
        center_class=name(row["center_class"]),
        guess=name(row["guess"]),
        chances=tuple((classes[number], float(chance)) for number, chance in json.loads(row["chances"])),
        is_open=bool(row["is_open"]),
        label=name(label),
        said=tuple(said),
    )
