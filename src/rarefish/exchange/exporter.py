"""Write picks and labels in the formats of other tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from warnings import warn

from rarefish.errors import ArgumentError, nearest
from rarefish.exchange.atomic_output import atomic_output
from rarefish.exchange.boxes import BoxedImage, clip_boxes
from rarefish.exchange.export_items import Item, drop_changed, read_items
from rarefish.exchange.formats import coco, cvat
from rarefish.exchange.formats import csv_table as tables
from rarefish.exchange.formats.coco import write_coco, write_coco_boxes
from rarefish.exchange.formats.csv_table import write_table
from rarefish.exchange.formats.cvat import write_cvat, write_cvat_boxes
from rarefish.exchange.formats.fiftyone import write_samples
from rarefish.exchange.formats.huggingface import write_dataset
from rarefish.exchange.formats.image_folder import write_folders
from rarefish.exchange.formats.label_studio import write_box_tasks, write_tasks
from rarefish.workspace.store import Store


@dataclass(frozen=True)
class Format:
    """A format: the function that writes items and class names to a path, and how its exports are recognized."""

    write: Callable[[list[Item], list[str], Path], None]
    marker: bytes = b""
    """Bytes near the start of every file of this format, or empty if the format is a folder."""
    has_files: bool = False
    """Whether the export contains the image files."""
    write_boxes: Callable[[list[BoxedImage], list[str], Path], None] | None = None
    """The function that writes images with boxes, if the format is used for them."""


FORMATS = {
    "csv": Format(write_table, tables.MARKER),
    "imagefolder": Format(write_folders, has_files=True),
    "coco": Format(write_coco, coco.MARKER, write_boxes=write_coco_boxes),
    "cvat": Format(write_cvat, cvat.MARKER, write_boxes=write_cvat_boxes),
    "label-studio": Format(write_tasks, write_boxes=write_box_tasks),
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
        url_prefix: Prefix of the image paths in formats that contain URLs. By default, the URLs refer to local files of
            a Label Studio server whose document root is the parent of the pool's folder.
        tell: Called with a message for each image that is left out because its file has changed since it was indexed.
            Only formats that contain the image files leave images out.
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


def export_boxes(images: Sequence[BoxedImage], classes: Sequence[str], format: str, target: Path) -> Path:
    """Writes images with boxes, which another tool shows for correction, and returns the path.

    Args:
        images: The images; boxes are cut at the edges of their image.
        classes: Names of the classes that annotators can choose, without a class for the background.
        format: "coco", "cvat" or "label-studio".
        target: File or folder to create. An earlier export there is kept as NAME~.
    """
    writers = {name: kind.write_boxes for name, kind in FORMATS.items() if kind.write_boxes is not None}
    if format not in writers:
        raise ArgumentError(f"Boxes cannot be written in the format {format!r}. {nearest(format, writers)}")
    clipped = [clip_boxes(image, classes) for image in images]
    with atomic_output(target, FORMATS[format].marker) as path:
        writers[format](clipped, list(classes), path)
    return target
