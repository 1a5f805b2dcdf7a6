"""A Hugging Face data set on disk: image and label as their features have it, with round and similarity."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.found import Found, need, ours
from rarefish.exchange.items import Item, content
from rarefish.exchange.names import to_file
from rarefish.exchange.places import MARK
from rarefish.workspace.indexing import fingerprint

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
    """Labels of all rows, of all splits where there are some; images that lost our numbers go by their bytes."""
    library = _library()
    with _quiet(library):
        try:
            loaded = library.load_from_disk(str(source), keep_in_memory=False)
            splits = loaded if isinstance(loaded, dict) else {"": loaded}
            for split, table in splits.items():
                yield from _find(library, table, f"{split} row".strip())
        except (DataError, ArgumentError):
            raise
        except Exception as error:  # a damaged file makes Arrow raise nearly anything
            raise DataError(f"{source} is no saved data set: {error}. Nothing was imported.") from error


def _find(library: Any, table: Any, where: str) -> Iterator[Found]:
    label = table.features.get("label")
    if label is None:
        raise DataError(f"The data set has the columns {', '.join(table.column_names)}; it needs label.")
    if isinstance(table.features.get("image"), library.Image):
        table = table.cast_column("image", library.Image(decode=False))
    for number, row in enumerate(table):
        value = row["label"]
        if value is None or value == UNLABELED:
            continue
        name = label.int2str(value) if isinstance(label, library.ClassLabel) else value
        known = ours({"image": row.get("rarefish_image"), "hash": row.get("rarefish_hash")})
        place = f"{where} {number}"
        yield Found(place, name=need(name, str, f"The label of {place}"), **(known or _by_content(row, place)))


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
