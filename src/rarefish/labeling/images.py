"""Images for the labeling page: indexed files that are checked and re-encoded at a limited size."""

import os
from dataclasses import dataclass
from io import BytesIO

from starlette.exceptions import HTTPException

from rarefish.data.image_io import open_picture
from rarefish.errors import DataError
from rarefish.workspace.indexed_files import IndexedFile, find_shown, read_indexed
from rarefish.workspace.store import Store

SIZES = (160, 320, 640, 1280, 2560)
"""Pixels on the longest side of encoded images; requested sizes are rounded up to one of these."""
SMALL = 320
"""Images up to this size are sent losslessly, as PNG."""
QUALITY = 88


@dataclass(frozen=True)
class EncodedImage:
    """An encoded image and its media type."""

    content: bytes
    media_type: str


def round_up(size: int) -> int:
    """Returns the smallest available size that is at least `size`, or the largest one."""
    return next((available for available in SIZES if available >= size), SIZES[-1])


def find(store: Store, image: int) -> IndexedFile:
    """Returns the file of a picked or validation image; replies to any other id with status 404."""
    found = find_shown(store, image)
    if found is None:
        raise HTTPException(404, f"There is no image {image} that can be shown.")
    return found


def encode(file: IndexedFile, size: int) -> EncodedImage:
    """Returns the image with a longest side of at most `size`, as JPEG or PNG without the file's metadata."""
    content = read(file)
    try:
        picture = open_picture(BytesIO(content), "The image file")
        picture.thumbnail((size, size))
    except DataError as error:
        raise HTTPException(422, f"{error} Answer unsure, or skip it.") from error
    picture.info = {}
    is_small = max(picture.size) <= SMALL
    encoded = BytesIO()
    picture.save(encoded, **({"format": "PNG"} if is_small else {"format": "JPEG", "quality": QUALITY}))
    return EncodedImage(encoded.getvalue(), "image/png" if is_small else "image/jpeg")


def read(file: IndexedFile) -> bytes:
    """Returns the file's content; replies with an error status if it is missing or has changed."""
    try:
        content = read_indexed(file.path, file.num_bytes, file.hash)
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise HTTPException(404, f"The image file is missing ({reason}). Restore it, or answer unsure.") from error
    if content is None and not os.path.isfile(file.path):
        raise HTTPException(422, "The image is no longer a regular file. Answer unsure, or skip it.")
    if content is None:
        raise HTTPException(409, "The image file has changed since it was indexed. Restore it, or answer unsure.")
    return content
