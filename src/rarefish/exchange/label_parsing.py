"""Labels as parsed from a file, before their images are looked up, and checks that all readers share."""

import json
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rarefish.errors import DataError

MAX_BYTES = 1 << 31
"""Maximum size of a label file."""


@dataclass(frozen=True)
class ParsedLabel:
    """A label as it appears in a file; its image and class are looked up later."""

    where: str
    """Position in the file, for messages."""
    image: int | None = None
    path: bytes | None = None
    hash: str = ""
    answer: str = "class"
    name: str = ""
    """Name of the class."""
    who: str = ""
    """The annotator, or empty if the file does not say."""
    made_at: str = ""
    key: str = ""
    """Identifier of this label in the other tool."""


def read_bytes(source: Path) -> bytes:
    """Returns the content of a regular file of at most `MAX_BYTES`."""
    try:
        status = source.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
            raise DataError(f"{source} is not a regular file. Nothing was imported.")
        if status.st_size > MAX_BYTES:
            raise DataError(f"{source} has {status.st_size:,} bytes, but a label file may have at most {MAX_BYTES:,}.")
        return source.read_bytes()
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}.") from error


def read_json(source: Path) -> Any:
    """Returns the parsed JSON of a file."""
    try:
        return json.loads(read_bytes(source))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is truncated or not valid JSON: {error}. Nothing was imported.") from error


def require(value: Any, kind: type, what: str) -> Any:
    """Returns the value if it has the type `kind`; otherwise, raises a DataError that names `what`."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DataError(f"{what} must be {TYPE_NAMES[kind]}, not {str(value)[:40]!r}. Nothing was imported.")
    return value


TYPE_NAMES = {dict: "an object", list: "a list", str: "text", int: "a whole number"}


def require_objects(value: Any, what: str) -> list[dict[str, Any]]:
    """Returns the value if it is a list of JSON objects; otherwise, raises a DataError."""
    return [
        require(row, dict, f"Entry {number} of {what}")
        for number, row in enumerate(require(value, list, what), start=1)
    ]


def read_own_fields(value: Any) -> dict[str, Any]:
    """Returns the image number and hash that our exports add, or nothing if another tool dropped or changed them."""
    fields = value if isinstance(value, dict) else {}
    image, hash_ = fields.get("image"), fields.get("hash")
    is_number = isinstance(image, int) and not isinstance(image, bool) and abs(image) < 1 << 63
    if not is_number or not isinstance(hash_, str) or not hash_:
        return {}
    return {"image": image, "hash": hash_}


def to_path(text: str) -> bytes:
    """Returns the path as bytes; text that cannot be encoded becomes a path that no image has."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def to_time(text: str, where: str) -> str:
    """Returns an ISO 8601 time normalized to UTC; a time without a time zone is interpreted as UTC."""
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{where}: {text[:40]!r} is not a time such as 2026-05-17T12:30Z. Nothing was imported."
        ) from error
    return moment.isoformat(timespec="milliseconds")
