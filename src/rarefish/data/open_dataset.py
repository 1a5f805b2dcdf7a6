"""Open a pool or validation set from a folder, CSV manifest or Parquet files; images are decoded on access."""

from dataclasses import replace
from pathlib import Path

from rarefish.data.file_listing import list_pool
from rarefish.data.image_files import ImageFiles, check_scale, full_paths, read_folder, read_manifest
from rarefish.data.parquet import ParquetImages, open_parquet
from rarefish.errors import DataError


def open_labeled(
    source: Path,
    size: tuple[int, int],
    mode: str = "RGB",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> ImageFiles:
    """Opens a validation set: a folder with one subfolder per class, or a CSV file with the columns path and label."""
    check_scale(mode, mean, std)
    read = read_folder if source.is_dir() else read_manifest
    return replace(read(source, size=size, mode=mode), mean=mean, std=std)


def open_pool(
    source: Path,
    size: tuple[int, int],
    mode: str = "RGB",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> ImageFiles | ParquetImages:
    """Opens a pool: all images below a folder, those in the path column of a CSV file, or those in Parquet files."""
    return replace(_open_pool(source, size, mode), mean=mean, std=std)


def _open_pool(source: Path, size: tuple[int, int], mode: str) -> ImageFiles | ParquetImages:
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    if source.suffix == ".parquet" or (source.is_dir() and any(source.glob("*.parquet"))):
        return open_parquet(sorted(source.glob("*.parquet")) if source.is_dir() else [source], size, mode)
    paths = full_paths(*list_pool(source))
    if not paths:
        raise DataError(f"{source} has no images.")
    return ImageFiles(tuple(paths), (-1,) * len(paths), (), size, mode)
