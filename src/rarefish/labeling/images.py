"""Images as a page shows them: looked up by id, compared with what was indexed, and drawn anew at a bounded size."""

import os
import stat
from dataclasses import dataclass
from io import BytesIO

from starlette.exceptions import HTTPException

from rarefish.data.image_io import open_picture
from rarefish.errors import DataError
from rarefish.workspace.indexing import fingerprint
from rarefish.workspace.store import Store

SIZES = (160, 320, 640, 1280, 2560)
"""Longest sides that are drawn; a wish is rounded up to one of them."""
SMALL = 320
"""Images up to this size lose nothing: they are sent as PNG."""
QUALITY = 88
AT_ONCE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe in a file's place must not hold the server up."""


@dataclass(frozen=True)
class Kept:
    """An indexed file, and where it is."""

    path: bytes
    hash: str
    bytes: int


@dataclass(frozen=True)
class Drawn:
    """An encoded image."""

    content: bytes
    kind: str


def round_up(size: int) -> int:
    return next((one for one in SIZES if one >= size), SIZES[-1])


def find(store: Store, image: int) -> Kept:
    """The file of an image that somebody is asked about, or that may have called for it; no other is shown."""
    with store.reading() as connection:
        row = connection.execute(
            "SELECT part, path, hash, bytes FROM image WHERE id = ? "
            "AND (part = 'validation' OR EXISTS (SELECT 1 FROM pick WHERE pick.image = image.id))",
            (image,),
        ).fetchone()
    if row is None:
        raise HTTPException(404, f"There is no image {image} to be shown.")
    root = os.fsencode(store.settings()[f"{row['part']}_root"])
    return Kept(os.path.join(root, row["path"]), row["hash"], row["bytes"])


def draw(kept: Kept, size: int) -> Drawn:
    """The image with a longest side of at most `size`, as JPEG or PNG; nothing else of the file is passed on."""
    content = read(kept)
    try:
        picture = open_picture(BytesIO(content), "The image file")
        picture.thumbnail((size, size))
    except DataError as error:
        raise HTTPException(422, f"{error} Answer unsure, or skip it.") from error
    picture.info = {}
    is_small = max(picture.size) <= SMALL
    encoded = BytesIO()
    picture.save(encoded, **({"format": "PNG"} if is_small else {"format": "JPEG", "quality": QUALITY}))
    return Drawn(encoded.getvalue(), "image/png" if is_small else "image/jpeg")


def read(kept: Kept) -> bytes:
    """The file's content, if it is what was indexed."""
    try:
        with os.fdopen(os.open(kept.path, AT_ONCE), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise HTTPException(422, "The image is no file any more. Answer unsure, or skip it.")
            content = file.read() if status.st_size == kept.bytes else b""
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise HTTPException(404, f"The image file is gone ({reason}). Put it back, or answer unsure.") from error
    if fingerprint(content) != kept.hash:
        raise HTTPException(409, "The image file was changed after it was indexed. Put it back, or answer unsure.")
    return content
