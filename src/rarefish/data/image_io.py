"""Decode image files: the first frame, upright according to EXIF, in 8 bits. Does not import torch."""

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from rarefish.errors import DataError, printable

Opened = BytesIO | BufferedReader
Source = Path | Opened
"""The path of a file, a file opened for reading bytes, or its bytes in memory."""
MAX_PIXELS = 150_000_000
"""Larger images are rejected based on their header. The limit is half a gigabyte in color, below Pillow's limit."""
MAX_BYTES = 8 * MAX_PIXELS
"""Memory that decoding may use; most decoders keep two copies at 4 bytes per pixel."""
BYTES_PER_PIXEL = {"WEBP": 16, "JPEG2000": 20, "AVIF": 10}
"""Memory use of decoders that keep more copies, as measured with Pillow 13; others need at most 8."""
STRIP_PIXELS = 1 << 20
"""Images are converted in strips of about this many pixels."""
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
"""Extensions of the files that are listed as images."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""Formats that may be opened. Pillow supports more, including EPS, for which it would start another program."""
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""For each EXIF orientation, the operation that turns a photograph upright."""
GREY = ("1", "L", "LA", "La")


def open_picture(source: Source, name: str) -> Image.Image:
    """Returns the image in mode RGB or L; raises DataError with the reason if it cannot be decoded.

    Pillow can raise almost any exception for a damaged file, so all exceptions are treated as errors in the file.
    """
    try:
        with _opened(source) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            return to_eight_bits(_upright(_decoded(file)))
    except Exception as error:
        raise DataError(f"{printable(name)} cannot be decoded: {_reason(error)}. Repair or remove it.") from error


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Returns the image in mode RGB or L, with transparent pixels as white."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        low, high = grey_range(np.asarray(strip) for strip in _strips(image))
        return _convert_strips(image, "L", lambda strip: Image.fromarray(_to_bytes(np.asarray(strip), low, high)))
    grey = "L" if image.mode in GREY else "RGB"
    if "transparency" not in image.info and not image.mode.upper().endswith("A"):
        return image if image.mode == grey else image.convert(grey)
    return _convert_strips(image, grey, lambda strip: _on_white(strip).convert(grey))


def grey_range(blocks: Iterable[np.ndarray]) -> tuple[float, float]:
    """Returns the gray values that become black and white, given all values in blocks of the same dtype.

    They are 0 and 65535 for integers, and 0 and 1 or 255 for floats. If values are outside that range, they are the
    smallest and the largest value.
    """
    ends, is_whole = list[float](), False
    for values in blocks:
        known, is_whole = values[np.isfinite(values)], np.issubdtype(values.dtype, np.integer)
        ends += [float(known.min()), float(known.max())] if known.size else []
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    top = next((top for top in ((65535.0,) if is_whole else (1.0, 255.0)) if low >= 0 and high <= top), None)
    return (low, high) if top is None else (0.0, top)


def _to_bytes(values: np.ndarray, low: float, high: float) -> np.ndarray:
    finite = np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low)
    return np.rint((finite - low) * (255 / max(high - low, 1e-300))).astype(np.uint8)


def _on_white(image: Image.Image) -> Image.Image:
    above = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    """Yields the image from top to bottom in strips of bounded size, since conversions need several copies."""
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def _convert_strips(image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    converted, top = Image.new(mode, image.size), 0
    for strip in _strips(image):
        converted.paste(convert(strip), (0, top))
        top += strip.height
    return converted


@contextmanager
def _opened(source: Source) -> Iterator[Opened]:
    if not isinstance(source, Path):
        yield source
        return
    kind = source.stat().st_mode
    if not stat.S_ISREG(kind):
        raise ValueError("it is a folder" if stat.S_ISDIR(kind) else "it is not a regular file")
    with open(source, "rb", opener=_open_nonblocking) as file:
        yield file


def _open_nonblocking(path: str, flags: int) -> int:
    """Opens without blocking, even if a pipe has replaced the file since it was checked."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _decoded(file: Opened) -> Image.Image:
    if not file.read(1):
        raise ValueError("it is empty")
    file.seek(0)
    image = Image.open(file, formats=_known_formats())
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError(f"{width} × {height}")
    needed = width * height * BYTES_PER_PIXEL.get(image.format or "", 8)
    if needed > MAX_BYTES:
        size = f"{width} × {height} pixels of {image.format}"
        raise ValueError(f"decoding {size} needs {needed / 1e9:.1f} GB, more than {MAX_BYTES / 1e9:.1f} GB")
    image.load()
    return image


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # an image with damaged EXIF data can still be shown
        turn = None
    return image if turn is None else image.transpose(turn)


@cache
def _known_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _reason(error: Exception) -> str:
    match error:
        case UnidentifiedImageError():
            said: Any = f"it is not an image in a known format ({', '.join(FORMATS)}), or its first bytes are damaged"
        case Image.DecompressionBombError():
            said = f"it has more than {MAX_PIXELS // 10**6} megapixels"
        case MemoryError():
            said = "there is not enough memory for it"
        case OSError(strerror=str(strerror)):
            said = strerror
        case _:
            said = str(error) or type(error).__name__
    return printable(str(said)).rstrip(". ")[:200]
