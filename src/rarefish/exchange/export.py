"""Writes picks and labels in the formats of other tools."""

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
from rarefish.exchange.items import Item, drop_changed, read_items
from rarefish.exchange.output_files import atomic_output
from rarefish.workspace.store import Store


@dataclass(frozen=True)
class Format:
    """How the items and the class names are written to a path."""

    write: Callable[[list[Item], list[str], Path], None]
    marker: bytes = b""
    """Bytes near the start of every file of this format; empty if the format is a folder."""
    has_files: bool = False
    """Whether the export contains the image files."""


FORMATS = {
    "csv": Format(write_table, tables.MARKER),
    "imagefolder": Format(write_folders, has_files=True),
    "coco": Format(write_coco, coco.MARKER),
    "cvat": Format(write_cvat, cvat.MARKER),
    "label-studio": Format(write_tasks),
    "fiftyone": Format(write_samples, has_files=True),
    "huggingface": Format(write_dataset, has_files=True),
}


def export(
    store: Store,
    what: str,
    format: str,
    target: Path,
    *,
    url_prefix: str = "",
    tell: Callable[[str], object] = warn,
) -> Path:
    """Writes an export and returns its path.

    Args:
        store: The workspace.
        what: "picks" for all selected images, or "labels" for those with an answer.
        format: A key of `FORMATS`.
        target: File or folder to create. An earlier export there is kept as NAME~.
        url_prefix: Prefix of the image paths in formats that hold URLs. By default the URLs refer to local files of a
            Label Studio server whose document root is the folder above the pool's.
        tell: Called with a message per image that is left out because its file changed since it was indexed. Only
            formats that contain the image files leave images out.
    """
    if format not in FORMATS:
        raise ArgumentError(f"Unknown format {format!r}. {nearest(format, FORMATS)}")
    items, changed = read_items(store, what, url_prefix), list[str]()
    if FORMATS[format].has_files:
        items, changed = drop_changed(items)
    with atomic_output(target, FORMATS[format].marker) as path:
        FORMATS[format].write(items, store.classes(), path)
    for message in changed:
        tell(message)
    return target
