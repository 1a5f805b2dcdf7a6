"""Picks and labels written in the forms of other tools."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from warnings import warn

from rarefish.errors import ArgumentError, nearest
from rarefish.exchange.formats import coco, cvat
from rarefish.exchange.formats import csv_table as tables
from rarefish.exchange.formats.coco import write_coco
from rarefish.exchange.formats.csv_table import write_table
from rarefish.exchange.formats.cvat import write_cvat
from rarefish.exchange.formats.fiftyone import write_samples
from rarefish.exchange.formats.huggingface import write_dataset
from rarefish.exchange.formats.image_folder import write_folders
from rarefish.exchange.formats.label_studio import write_tasks
from rarefish.exchange.items import Item, read_items, sift
from rarefish.exchange.places import finished
from rarefish.workspace.store import Store


@dataclass(frozen=True)
class Form:
    """How items and the names of the classes are written to a place."""

    write: Callable[[list[Item], list[str], Path], None]
    mark: bytes = b""
    """At the head of a file of this form; empty where the form is a folder."""
    has_files: bool = False
    """Whether the images themselves go along."""


FORMS = {
    "csv": Form(write_table, tables.MARK),
    "imagefolder": Form(write_folders, has_files=True),
    "coco": Form(write_coco, coco.MARK),
    "cvat": Form(write_cvat, cvat.MARK),
    "label-studio": Form(write_tasks),
    "fiftyone": Form(write_samples, has_files=True),
    "huggingface": Form(write_dataset, has_files=True),
}


def export(
    store: Store,
    what: str,
    form: str,
    target: Path,
    *,
    url_prefix: str = "",
    tell: Callable[[str], object] = warn,
) -> Path:
    """The file or folder, complete. `what` is "picks", all images that were asked about, or "labels", the answered.

    `url_prefix` stands before the images' paths where the form has addresses in the place of files; without one they
    are local files of a Label Studio whose document root is the folder above the pool's. Where the images themselves
    go along, one whose file changed since it was indexed is left out, and `tell` gets a sentence on it.
    """
    if form not in FORMS:
        raise ArgumentError(f"There is no form {form!r}. {nearest(form, FORMS)}")
    items, changed = read_items(store, what, url_prefix), list[str]()
    if FORMS[form].has_files:
        items, changed = sift(items)
    with finished(target, FORMS[form].mark) as place:
        FORMS[form].write(items, store.classes(), place)
    for sentence in changed:
        tell(sentence)
    return target
