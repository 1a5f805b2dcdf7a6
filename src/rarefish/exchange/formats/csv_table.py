"""CSV: one row an answer, or an image without one; people may fill in the column class and send it back."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from rarefish.errors import DataError, list_some
from rarefish.exchange.found import Found, read_bytes, to_path, to_time
from rarefish.exchange.items import Item, Said
from rarefish.io import from_cell, to_cell

COLUMNS = (
    *("image", "path", "hash", "round", "rank", "similarity", "center", "center_class", "guess", "prediction"),
    *("chance", "is_open", "class", "answer", "who", "made_at"),
)
MARK = ",".join(COLUMNS[:6]).encode()
OTHER_WORDS = {
    "file": "path",
    "file_name": "path",
    "filename": "path",
    "label": "class",
    "time": "made_at",
}
"""What other tables call our columns. A column id is none of them: it counts rows of some other table."""
NOBODY = Said("", "", "", "")


def write_table(items: list[Item], classes: list[str], place: Path) -> None:
    with place.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in items:
            for said in item.said or (NOBODY,):
                writer.writerow(map(to_cell, _row(item, said)))


def read_table(source: Path, classes: list[str]) -> Iterator[Found]:
    """Rows with an answer. A row needs an image's number, path or hash, and a class or another answer.

    Where a row has several of the first they must name the same image, which is looked up later.
    """
    text = read_bytes(source).decode("utf-8-sig", "surrogateescape")
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [OTHER_WORDS.get(name.strip().lower(), name.strip().lower()) for name in next(reader, [])]
        _check(columns, source)
        for cells in reader:
            if cells and len(cells) != len(columns):
                raise DataError(
                    f"{source}, line {reader.line_num}: {len(cells)} cells, where the first line names {len(columns)}. "
                    "The file may be cut off; nothing was imported."
                )
            row = dict(zip(columns, map(from_cell, cells), strict=False))
            if row.get("class", "").strip() or row.get("answer", "").strip():
                yield _found(row, f"line {reader.line_num}")
    except csv.Error as error:
        raise DataError(f"{source}, line {reader.line_num}: {error}. Nothing was imported.") from error


def _row(item: Item, said: Said) -> list[object]:
    name, chance = item.prediction
    why = [item.round, item.rank, item.similarity, item.center, item.center_class, item.guess, name, chance]
    answer = [said.name, said.answer, said.who, said.made_at]
    return [item.image, os.fsdecode(item.path), item.hash, *why, int(item.is_open), *answer]


def _found(row: dict[str, str], where: str) -> Found:
    number, path = row.get("image", "").strip(), row.get("path", "")
    if number and not (number.isascii() and number.isdigit() and len(number) < 19):
        raise DataError(f"{where}: {number[:40]!r} is no image's number. Nothing was imported.")
    return Found(
        where,
        image=int(number) if number else None,
        path=to_path(path) if path else None,
        hash=row.get("hash", "").strip(),
        answer=row.get("answer", "").strip() or "class",
        name=row.get("class", "").strip(),
        who=row.get("who", "").strip(),
        made_at=to_time(row.get("made_at", "").strip(), where),
    )


def _check(columns: list[str], source: Path) -> None:
    if not {"class", "answer"} & set(columns) or not {"image", "path", "hash"} & set(columns):
        raise DataError(
            f"{source} has the columns {list_some(columns) or 'none'}; it needs one of image, path or hash, and class."
        )
    if len(set(columns)) < len(columns):
        raise DataError(f"{source} names a column twice: {list_some(columns, 20)}.")
