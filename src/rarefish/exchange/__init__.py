"""Export and import of picks and labels in the formats of other tools. Does not import torch."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.exchange.boxes import Box, BoxedImage
    from rarefish.exchange.export_items import Answer, Item, read_items
    from rarefish.exchange.exporter import FORMATS, Format, export, export_boxes
    from rarefish.exchange.importer import READERS, Imported, import_labels
    from rarefish.exchange.label_parsing import ParsedLabel
    from rarefish.exchange.label_studio_sync import Pushed, pull, push

__all__ = [
    "FORMATS",
    "READERS",
    "Answer",
    "Box",
    "BoxedImage",
    "Format",
    "Imported",
    "Item",
    "ParsedLabel",
    "Pushed",
    "export",
    "export_boxes",
    "import_labels",
    "pull",
    "push",
    "read_items",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "boxes": ("Box", "BoxedImage"),
        "export_items": ("Answer", "Item", "read_items"),
        "exporter": ("FORMATS", "Format", "export", "export_boxes"),
        "importer": ("READERS", "Imported", "import_labels"),
        "label_parsing": ("ParsedLabel",),
        "label_studio_sync": ("Pushed", "pull", "push"),
    },
)
