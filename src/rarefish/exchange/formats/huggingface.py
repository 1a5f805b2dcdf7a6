"""A Hugging Face data set on disk: image and label as their features have it, with round and similarity."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.found import Found, need, need_rows, ours, read_json
from rarefish.exchange.items import Item, content
from rarefish.exchange.names import to_file
from rarefish.exchange.places import MARK
from rarefish.workspace.indexing import fingerprint

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""Files of a data set on disk: which Arrow files it has, what its columns are, which splits there are."""
KNOWN = ("image", "label", "rarefish_image", "rarefish_hash")
"""Columns that are read; all others are left alone."""
UNLABELED = -1
"""What `datasets` itself calls a class that is not known."""


def write_dataset(items: list[Item], classes: list[str], place: Path) -> None:
    """A folder that `datasets.load_from_disk` reads; the images' bytes are inside, as they are."""
    library = _library()
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
    with _quiet(library), TemporaryDirectory(dir=place.parent, prefix=".rarefish-") as folder:
        from datasets.arrow_writer import ArrowWriter

        whole = str(Path(folder) / "whole.arrow")  # written row by row: the images need not fit into memory
        writer = ArrowWriter(features=features, path=whole, writer_batch_size=100)
        for item in items:
            writer.write(_row(item, classes))
        writer.finalize()
        writer.close()
        library.Dataset.from_file(whole).save_to_disk(str(place))
    (place / MARK).write_text(json.dumps({"classes": classes}), encoding="utf-8")


def read_dataset(source: Path, classes: list[str]) -> Iterator[Found]:
    """Labels of all rows, of all splits where there are some; images that lost our numbers go by their bytes.

    The Arrow files are read without the library `datasets`, which would decode every image of every column: start
    Ghostscript for EPS, open paths and fetch addresses that a row names.
    """
    if find_spec("pyarrow") is None:
        raise ArgumentError("This form needs Arrow: pip install pyarrow")
    try:
        for split, folder in _splits(source).items():
            yield from _find(folder, f"{split} row".strip())
    except DataError:
        raise
    except Exception as error:  # a damaged file makes Arrow raise nearly anything
        raise DataError(f"{source} is no saved data set: {error}. Nothing was imported.") from error


def _splits(source: Path) -> dict[str, Path]:
    """The folders that hold rows, by the name of the split, which is empty where there is but one."""
    if (source / STATE).exists():
        return {"": source}
    if not (source / SPLITS).exists():
        raise DataError(f"{source} is no saved data set: it has neither {STATE} nor {SPLITS}. Nothing was imported.")
    names = need(need(read_json(source / SPLITS), dict, SPLITS).get("splits"), list, f"splits in {SPLITS}")
    return {name: source / _plain(name, SPLITS) for name in names}


def _find(folder: Path, where: str) -> Iterator[Found]:
    features = need(need(read_json(folder / INFO), dict, INFO).get("features"), dict, f"features in {INFO}")
    label = need(features.get("label", {}), dict, f"label in {INFO}")
    is_number = label.get("_type") == "ClassLabel"
    names = need(label.get("names"), list, f"names of label in {INFO}") if is_number else []
    for number, row in enumerate(_rows(folder)):
        value, place = row["label"], f"{where} {number}"
        if value is None or value == UNLABELED:
            continue
        if is_number and isinstance(value, int):
            if not 0 <= value < len(names):
                raise DataError(
                    f"{place} has the class {value}, but the data set names {len(names)} classes. Nothing was imported."
                )
            value = names[value]
        known = ours({"image": row.get("rarefish_image"), "hash": row.get("rarefish_hash")})
        yield Found(place, name=need(value, str, f"The label of {place}"), **(known or _by_content(row, place)))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The columns we know of each row, as they are stored."""
    import pyarrow

    state = need(read_json(folder / STATE), dict, STATE)
    for entry in need_rows(state.get("_data_files"), f"_data_files in {STATE}"):
        file = folder / _plain(entry.get("filename"), STATE)
        if not file.is_file():
            raise DataError(f"{file} is not a regular file. Nothing was imported.")
        with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as batches:
            columns = batches.schema.names
            if "label" not in columns:
                raise DataError(f"The data set has the columns {', '.join(columns)}; it needs label.")
            wanted = [name for name in KNOWN if name in columns]
            for batch in batches:
                for at in range(batch.num_rows):  # one by one: the images need not fit into memory
                    yield batch.select(wanted).slice(at, 1).to_pylist()[0]


def _plain(name: Any, where: str) -> str:
    """The name, if it is one of a file or folder beside the one that names it."""
    if not isinstance(name, str) or name in ("", ".", "..") or not name.isprintable() or set(name) & set("/\\:"):
        raise DataError(f"{where} names {str(name)[:40]!r}, which is no file of this data set. Nothing was imported.")
    return name


def _row(item: Item, classes: list[str]) -> dict[str, Any]:
    return {
        "image": {"bytes": content(item), "path": to_file(item.image, item.path)},
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


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ArgumentError("This form needs Hugging Face's library: pip install datasets") from error
    return datasets


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without its bars; the caller's setting is given back."""
    was_on = library.utils.logging.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if was_on:
            library.enable_progress_bars()
