"""CSV: one row per answer, and one per image without an answer, in which people can fill in the class."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from rarefish.errors import DataError, list_some
from rarefish.exchange.export_items import Answer, Item
from rarefish.exchange.label_parsing import ParsedLabel, read_bytes, to_path, to_time
from rarefish.io import from_cell, to_cell

COLUMNS = (
    *("image", "path", "hash", "round", "rank", "similarity", "center", "center_class", "guess", "prediction"),
    *("probability", "is_open", "class", "answer", "who", "made_at"),
)
MARKER = ",".join(COLUMNS[:6]).encode()
COLUMN_ALIASES = {
    "file": "path",
    "file_name": "path",
    "filename": "path",
    "label": "class",
    "time": "made_at",
}
"""Column names in other tables, and our names for them. "id" is not included: it numbers the rows of that table."""
NO_ANSWER = Answer("", "", "", "")


def write_table(items: list[Item], classes: list[str], path: Path) -> None:
    """Writes a CSV file with the columns `COLUMNS`."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in items:
            for answer in item.answers or (NO_ANSWER,):
                writer.writerow(map(to_cell, _row(item, answer)))


def read_table(source: Path, classes: list[str]) -> Iterator[ParsedLabel]:
    """Yields the rows that have an answer.

    A row identifies an image by number, path or hash, and contains a class or another answer. If it identifies the
    image in several ways, they must agree, which is checked later.
    """
    text = read_bytes(source).decode("utf-8-sig", "surrogateescape")
    header = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [COLUMN_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in next(reader, [])]
        _check_columns(columns, source)
        for cells in reader:
            if cells and len(cells) != len(columns):
                raise DataError(
                    f"{source}, line {reader.line_num} has {len(cells)} cells, but the header has {len(columns)}. "
                    "The file may be truncated. Nothing was imported."
                )
            row = dict(zip(columns, map(from_cell, cells), strict=False))
            if row.get("class", "").strip() or row.get("answer", "").strip():
                yield _parse_row(row, f"line {reader.line_num}")
    except csv.Error as error:
        raise DataError(f"{source}, line {reader.line_num}: {error}. Nothing was imported.") from error


def _row(item: Item, answer: Answer) -> list[object]:
    name, probability = item.prediction
    reasons = [item.round, item.rank, item.similarity, item.center, item.center_class, item.guess, name, probability]
    given = [answer.name, answer.answer, answer.who, answer.made_at]
    return [item.image, os.fsdecode(item.path), item.hash, *reasons, int(item.is_open), *given]


def _parse_row(row: dict[str, str], where: str) -> ParsedLabel:
    number, path = row.get("image", "").strip(), row.get("path", "")
    if number and not (number.isascii() and number.isdigit() and len(number) < 19):
        raise DataError(f"{where}: {number[:40]!r} is not an image number. Nothing was imported.")
    return ParsedLabel(
        where,
        image=int(number) if number else None,
        path=to_path(path) if path else None,
        hash=row.get("hash", "").strip(),
        answer=row.get("answer", "").strip() or "class",
        name=row.get("class", "").strip(),
        who=row.get("who", "").strip(),
        made_at=to_time(row.get("made_at", "").strip(), where),
    )


def _check_columns(columns: list[str], source: Path) -> None:
    if not {"class", "answer"} & set(columns) or not {"image", "path", "hash"} & set(columns):
        raise DataError(
            f"{source} has the columns {list_some(columns) or 'none'}; it needs class and one of image, path and hash."
        )
    if len(set(columns)) < len(columns):
        raise DataError(f"{source} has a duplicate column: {list_some(columns, 20)}.")
