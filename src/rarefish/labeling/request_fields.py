"""Validation of request fields: if a field has the wrong type or size, the reply names it."""

import asyncio
import json
import math
import re
import unicodedata
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from rarefish.labeling.security import MOST_BODY_BYTES

PATIENCE_S = 10
MOST_NUMBER = 2**63 - 1
"""The largest integer in SQLite."""
MOST_HELD = 100
MOST_TASKS = 20
TICKET = re.compile(r"[A-Za-z0-9_-]{8,64}")


async def read_body(request: Request) -> dict[str, Any]:
    """Returns the JSON object in a request; reads no more than the limit, regardless of Content-Length."""
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY_BYTES:
                    raise HTTPException(413, f"The body is too large; the limit is {MOST_BODY_BYTES:,} bytes.")
        found = json.loads(bytes(body), parse_constant=_no_number)
    except TimeoutError as error:
        raise HTTPException(408, f"The body did not arrive within {PATIENCE_S} seconds.") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "The request ended before its body did.") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "The body is not JSON.") from error
    if not isinstance(found, dict):
        raise HTTPException(422, "The body must be a JSON object.")
    return found


def integer(body: dict[str, Any], name: str, most: int = MOST_NUMBER, default: int | None = None) -> int:
    """Returns an integer field from 0 to `most`."""
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise HTTPException(422, f"'{name}' must be an integer from 0 to {most}, not {_show(value)}.")
    return value


def optional_integer(body: dict[str, Any], name: str) -> int | None:
    """Returns an integer field, or None if it is null or missing."""
    return None if body.get(name) is None else integer(body, name)


def text(body: dict[str, Any], name: str) -> str:
    """Returns a string field."""
    value = body.get(name)
    if not isinstance(value, str):
        raise HTTPException(422, f"'{name}' must be a string, not {_show(value)}.")
    return value


def person(name: str) -> str:
    """Returns a person's name in normal form, so that different code points or spaces do not make different people."""
    return unicodedata.normalize("NFC", " ".join(name.split()) if name.isprintable() else name)


def ticket(body: dict[str, Any]) -> str:
    """Returns the ticket, which identifies a repeated request."""
    value = text(body, "ticket")
    if not TICKET.fullmatch(value):
        raise HTTPException(422, "'ticket' must have 8 to 64 letters, digits, '-' or '_'.")
    return value


def seconds(body: dict[str, Any]) -> float | None:
    """Returns how long the answer took, or None."""
    value = body.get("seconds")
    is_time = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e7
    if value is not None and not (is_time and math.isfinite(value)):
        raise HTTPException(422, f"'seconds' must be a number or be left out, not {_show(value)}.")
    return None if value is None else float(value)


def images(body: dict[str, Any], name: str) -> tuple[int, ...]:
    """Returns a field with a list of image ids."""
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > MOST_HELD:
        raise HTTPException(422, f"'{name}' must be a list of at most {MOST_HELD} images.")
    return tuple(integer({name: one}, name) for one in value)


def _show(value: object) -> str:
    return ascii(value)[:60]


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
