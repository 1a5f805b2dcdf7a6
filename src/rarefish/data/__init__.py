"""Datasets: list, read and decode images."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.data.arrays import Arrays, Pixels, read_idx, read_npz, read_svhn
    from rarefish.data.boxes import box_overlaps, match_boxes
    from rarefish.data.digits import load_digits
    from rarefish.data.embeddings import open_embeddings
    from rarefish.data.image_files import ImageFiles, read_folder, read_manifest
    from rarefish.data.imbalance import cut_each, long_tail, mistaken, step_imbalance, stratified, subsample
    from rarefish.data.lazy_images import Images, Stored
    from rarefish.data.open_dataset import open_labeled, open_pool
    from rarefish.data.parquet import ParquetImages, open_parquet
    from rarefish.data.reader import Batch, Data, Reader
    from rarefish.data.splits import Splits
    from rarefish.data.tile_sheets import read_sheets

__all__ = [
    "Arrays",
    "Batch",
    "Data",
    "ImageFiles",
    "Images",
    "ParquetImages",
    "Pixels",
    "Reader",
    "Splits",
    "Stored",
    "box_overlaps",
    "cut_each",
    "load_digits",
    "long_tail",
    "match_boxes",
    "mistaken",
    "open_embeddings",
    "open_labeled",
    "open_parquet",
    "open_pool",
    "read_folder",
    "read_idx",
    "read_manifest",
    "read_npz",
    "read_sheets",
    "read_svhn",
    "step_imbalance",
    "stratified",
    "subsample",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "arrays": ("Arrays", "Pixels", "read_idx", "read_npz", "read_svhn"),
        "boxes": ("box_overlaps", "match_boxes"),
        "digits": ("load_digits",),
        "embeddings": ("open_embeddings",),
        "image_files": ("ImageFiles", "read_folder", "read_manifest"),
        "imbalance": ("cut_each", "long_tail", "mistaken", "step_imbalance", "stratified", "subsample"),
        "lazy_images": ("Images", "Stored"),
        "open_dataset": ("open_labeled", "open_pool"),
        "parquet": ("ParquetImages", "open_parquet"),
        "reader": ("Batch", "Data", "Reader"),
        "splits": ("Splits",),
        "tile_sheets": ("read_sheets",),
    },
)
