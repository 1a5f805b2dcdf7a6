"""Writers and readers, one file format per module."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.exchange.formats.coco import read_coco, write_coco, write_coco_boxes
    from rarefish.exchange.formats.csv_table import read_table, write_table
    from rarefish.exchange.formats.cvat import read_cvat, write_cvat, write_cvat_boxes
    from rarefish.exchange.formats.fiftyone import read_samples, write_samples
    from rarefish.exchange.formats.huggingface import read_dataset, write_dataset
    from rarefish.exchange.formats.image_folder import read_folders, write_folders
    from rarefish.exchange.formats.label_studio import read_tasks, write_box_tasks, write_tasks

__all__ = [
    "read_coco",
    "read_cvat",
    "read_dataset",
    "read_folders",
    "read_samples",
    "read_table",
    "read_tasks",
    "write_box_tasks",
    "write_coco",
    "write_coco_boxes",
    "write_cvat",
    "write_cvat_boxes",
    "write_dataset",
    "write_folders",
    "write_samples",
    "write_table",
    "write_tasks",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "coco": ("read_coco", "write_coco", "write_coco_boxes"),
        "csv_table": ("read_table", "write_table"),
        "cvat": ("read_cvat", "write_cvat", "write_cvat_boxes"),
        "fiftyone": ("read_samples", "write_samples"),
        "huggingface": ("read_dataset", "write_dataset"),
        "image_folder": ("read_folders", "write_folders"),
        "label_studio": ("read_tasks", "write_box_tasks", "write_tasks"),
    },
)
