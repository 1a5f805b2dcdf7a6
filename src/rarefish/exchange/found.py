"""What a reader finds in a file: a label, for whom it is, who gave it. And how a file says that it is broken."""

import json
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rarefish.errors import DataError

LARGEST = 1 << 31
"""Bytes of a file of labels; more is a mistake."""


@dataclass(frozen=True)
class Found:
    """One label as a file has it; which image and class it means is looked up later."""

    where: str
    """Its place in the file, for a sentence."""
    image: int | None = None
    path: bytes | None = None
    hash: str = ""
    answer: str = "class"
    name: str = ""
    """The class."""
    who: str = ""
    """Empty where the file does not say."""
    made_at: str = ""
    key: str = ""
    """What the other tool calls this label."""


def read_bytes(source: Path) -> bytes:
    try:
        found = source.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would keep us waiting
            raise DataError(f"{source} is not a regular file. Nothing was imported.")
        if found.st_size > LARGEST:
            raise DataError(f"{source} has {found.st_size:,} bytes: it cannot be a file of labels.")
        return source.read_bytes()
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}.") from error


def read_json(source: Path) -> Any:
    try:
        return json.loads(read_bytes(source))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is no JSON, or was cut off: {error}. Nothing was imported.") from error


def need(value: Any, kind: type, what: str) -> Any:
    """The value, if it is of that kind."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DataError(f"{what} must be {WORDS[kind]}, not {str(value)[:40]!r}. Nothing was imported.")
    return value


WORDS = {dict: "an object", list: "a list", str: "text", int: "a whole number"}


def need_rows(value: Any, what: str) -> list[dict[str, Any]]:
    """The value, if it is a list of objects."""
    return [need(row, dict, f"Entry {number} of {what}") for number, row in enumerate(need(value, list, what), start=1)]


def ours(value: Any) -> dict[str, Any]:
    """Number and hash of an image as our exports note them; nothing where another tool has not kept them."""
    known = value if isinstance(value, dict) else {}
    image, hash_ = known.get("image"), known.get("hash")
    is_number = isinstance(image, int) and not isinstance(image, bool) and abs(image) < 1 << 63
    if not is_number or not isinstance(hash_, str) or not hash_:
        return {}
    return {"image": image, "hash": hash_}


def to_path(text: str) -> bytes:
    """A path as the file system has it; text that cannot be one becomes a path that no image has."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def to_time(text: str, where: str) -> str:
    """A moment in our own spelling; without a zone it is taken to be UTC."""
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: {text[:40]!r} is no time like 2026-05-17T12:30Z. Nothing was imported.") from error
    return moment.isoformat(timespec="milliseconds")
