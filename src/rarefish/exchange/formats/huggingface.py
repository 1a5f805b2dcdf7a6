"""A Hugging Face dataset on disk, with image and label as typed features, and with round and similarity."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.atomic_output import MARKER_FILE
from rarefish.exchange.export_items import Item, read_image
from rarefish.exchange.label_parsing import ParsedLabel, read_json, read_own_fields, require, require_objects
from rarefish.exchange.safe_names import to_file_name
from rarefish.workspace.indexing import fingerprint

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""Files of a dataset on disk that list its Arrow files, columns and splits."""
COLUMNS_READ = ("image", "label", "rarefish_image", "rarefish_hash")
"""The columns that an import reads; all others are ignored."""
UNLABELED = -1
"""The value that `datasets` uses for a missing class label."""


def write_dataset(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes a folder for `datasets.load_from_disk`; it contains the bytes of the images, unchanged."""
    library = _import_datasets()
    features = library.Features(
        {
            "image": library.Image(),
            "label": library.ClassLabel(names=classes),
            "rarefish_image": library.Value("int64"),
            "rarefish_hash": library.Value("string"),
            "round": library.Value("int64"),
            "similarity": library.Value("float64"),
            "center": library.Value("int64"),
            "prediction": library.Value("string"),
        }
    )
    with _no_progress_bars(library), TemporaryDirectory(dir=path.parent, prefix=".rarefish-") as folder:
        from datasets.arrow_writer import ArrowWriter

        file = str(Path(folder) / "items.arrow")  # written row by row, since the images may not fit into memory
        writer = ArrowWriter(features=features, path=file, writer_batch_size=100)
        for item in items:
            writer.write(_row(item, classes))
        writer.finalize()
        writer.close()
        library.Dataset.from_file(file).save_to_disk(str(path))
    (path / MARKER_FILE).write_text(json.dumps({"classes": classes}), encoding="utf-8")


def read_dataset(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the labels of all rows of all splits. Rows without our columns are identified by their image bytes.

    The Arrow files are read without the `datasets` library. It would decode every image in every column, and thereby
    start Ghostscript for EPS files, open paths and fetch URLs from the rows.
    """
    if find_spec("pyarrow") is None:
        raise ArgumentError("The format huggingface needs pyarrow: pip install pyarrow")
    try:
        for split, folder in _splits(source).items():
            yield from _parse_folder(folder, f"{split} row".strip())
    except DataError:
        raise
    except Exception as error:  # Arrow raises many kinds of exceptions for a damaged file
        raise DataError(f"{source} is not a saved dataset: {error}. Nothing was imported.") from error


def _splits(source: Path) -> dict[str, Path]:
    """Returns the folder of each split by name; the name is empty if the dataset has no splits."""
    if (source / STATE).exists():
        return {"": source}
    if not (source / SPLITS).exists():
        raise DataError(f"{source} is not a saved dataset: it has neither {STATE} nor {SPLITS}. Nothing was imported.")
    names = require(require(read_json(source / SPLITS), dict, SPLITS).get("splits"), list, f"splits in {SPLITS}")
    return {name: source / _check_file_name(name, SPLITS) for name in names}


def _parse_folder(folder: Path, where: str) -> Iterator[ParsedLabel]:
    features = require(require(read_json(folder / INFO), dict, INFO).get("features"), dict, f"features in {INFO}")
    label = require(features.get("label", {}), dict, f"label in {INFO}")
    is_number = label.get("_type") == "ClassLabel"
    names = require(label.get("names"), list, f"names of label in {INFO}") if is_number else []
    for number, row in enumerate(_rows(folder)):
        value, location = row["label"], f"{where} {number}"
        if value is None or value == UNLABELED:
            continue
        if is_number and isinstance(value, int):
            if not 0 <= value < len(names):
                raise DataError(
                    f"{location} has the class {value}, but the dataset has only {len(names)} classes. "
                    "Nothing was imported."
                )
            value = names[value]
        own_fields = read_own_fields({"image": row.get("rarefish_image"), "hash": row.get("rarefish_hash")})
        yield ParsedLabel(
            location, name=require(value, str, f"The label of {location}"), **(own_fields or _by_content(row, location))
        )


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the columns `COLUMNS_READ` of each row, undecoded."""
    import pyarrow

    state = require(read_json(folder / STATE), dict, STATE)
    for entry in require_objects(state.get("_data_files"), f"_data_files in {STATE}"):
        file = folder / _check_file_name(entry.get("filename"), STATE)
        if not file.is_file():
            raise DataError(f"{file} is not a regular file. Nothing was imported.")
        with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as batches:
            columns = batches.schema.names
            if "label" not in columns:
                raise DataError(f"The dataset has the columns {', '.join(columns)}, but no label column.")
            wanted = [name for name in COLUMNS_READ if name in columns]
            for batch in batches:
                for at in range(batch.num_rows):  # one by one, since the images may not fit into memory
                    yield batch.select(wanted).slice(at, 1).to_pylist()[0]


def _check_file_name(name: Any, where: str) -> str:
    """Returns the name if it is a plain file name without a folder; otherwise, raises a DataError."""
    if not isinstance(name, str) or name in ("", ".", "..") or not name.isprintable() or set(name) & set("/\\:"):
        raise DataError(f"{where} names {str(name)[:40]!r}, which is not a file of this dataset. Nothing was imported.")
    return name


def _row(item: Item, classes: list[str]) -> dict[str, Any]:
    return {
        "image": {"bytes": read_image(item), "path": to_file_name(item.image, item.path)},
        "label": UNLABELED if item.label is None else classes.index(item.label),
        "rarefish_image": item.image,
        "rarefish_hash": item.hash,
        "round": item.round,
        "similarity": item.similarity,
        "center": item.center,
        "prediction": item.prediction[0],
    }


def _by_content(row: dict[str, Any], where: str) -> dict[str, Any]:
    image = row.get("image")
    if not isinstance(image, dict) or not isinstance(image.get("bytes"), bytes):
        raise DataError(f"{where} has neither rarefish_image and rarefish_hash nor the bytes of its image.")
    return {"hash": fingerprint(image["bytes"])}


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ArgumentError("The format huggingface needs the datasets library: pip install datasets") from error
    return datasets


@contextmanager
def _no_progress_bars(library: Any) -> Iterator[None]:
    """Turns off the progress bars of `datasets` within the block, and then restores the caller's setting."""
    was_on = library.utils.logging.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if was_on:
            library.enable_progress_bars()
