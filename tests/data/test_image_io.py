"""Every kind of image as a person sees it, and every kind of damage as one sentence."""

import io
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rarefish.data.image_files import decode
from rarefish.data.image_io import MAX_PIXELS, open_picture, printable, to_eight_bits
from rarefish.errors import DataError

KINDS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
COLOURS = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def content(image: Image.Image, kind: str, **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def seen(data: bytes) -> Image.Image:
    return open_picture(io.BytesIO(data), "it")


def corners(image: Image.Image) -> list[object]:
    right, bottom = image.width - 1, image.height - 1
    return [image.getpixel(place) for place in ((0, 0), (right, 0), (0, bottom), (right, bottom))]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_images_are_decoded_as_pillow_does(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(content(Image.fromarray(COLOURS), kind))
    with Image.open(path) as plain:
        for mode in ("RGB", "L"):
            expected = np.array(plain.convert(mode).resize((10, 20), Image.Resampling.BILINEAR))
            found = decode(path, (20, 10), mode, "it").permute(1, 2, 0).mul(255).round().numpy().squeeze()
            assert np.array_equal(found, expected)
    with path.open("rb") as file:
        assert open_picture(file, "it").tobytes() == open_picture(path, "it").tobytes()
        assert not file.closed


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_upright(orientation: int) -> None:
    """A viewer that takes the camera's note to heart shows them all alike."""
    upright = Image.new("RGB", (16, 32))
    for place, colour in (((0, 0), "red"), ((8, 0), "lime"), ((0, 16), "blue"), ((8, 16), "white")):
        upright.paste(colour, (*place, place[0] + 8, place[1] + 16))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in ("PNG", "TIFF", "WEBP"):
        found = seen(content(stored, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {})))
        assert found.size == (16, 32) and corners(found) == corners(upright), kind


def test_damaged_notes_do_not_hide_the_image() -> None:
    good = content(Image.fromarray(COLOURS), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert seen(good).size == (32, 24)


def test_the_first_frame_is_shown() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "lime", "blue")]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        data = content(frames[0], kind, save_all=True, append_images=frames[1:])
        red, green, blue = seen(data).getpixel((2, 2))  # pyright: ignore[reportGeneralTypeIssues]
        assert red > 240 and green < 15 and blue < 15, kind


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_become_eight(kind: str) -> None:
    deep = np.array([[0, 257, 65535], [32768, 128, 129]], np.uint16)
    found = seen(content(Image.fromarray(deep), kind))
    assert found.mode == "L" and np.array(found).tolist() == [[0, 1, 255], [128, 0, 1]]


def grey_bytes(values: np.ndarray) -> list[int]:
    return np.array(to_eight_bits(Image.fromarray(values[None])))[0].tolist()


def test_grey_of_other_ranges() -> None:
    assert grey_bytes(np.array([0.0, 0.5, 1.0], np.float32)) == [0, 128, 255]
    assert grey_bytes(np.array([0.0, 100.0, 254.6], np.float32)) == [0, 100, 255]
    assert grey_bytes(np.array([-5.0, 0.0, 5.0], np.float32)) == [0, 128, 255]
    assert grey_bytes(np.array([-(2**31), 2**31 - 1], np.int32)) == [0, 255]
    assert grey_bytes(np.array([np.nan, np.inf, -np.inf, 0.25], np.float32)) == [0, 255, 0, 64]
    assert grey_bytes(np.array([np.nan], np.float32)) == [0]
    assert grey_bytes(np.array([7e4, 7e4], np.float32)) == [0, 0]
    whole = content(Image.fromarray(np.array([[0.0, 1.0]], np.float32)), "TIFF")
    assert np.array(seen(whole)).tolist() == [[0, 255]]


def test_what_is_transparent_is_white() -> None:
    half = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    half.putpixel((1, 0), (255, 0, 0, 0))
    assert corners(seen(content(half, "PNG")))[:2] == [(255, 0, 0), (255, 255, 255)]
    grey = Image.new("LA", (2, 1), (7, 255))
    grey.putpixel((1, 0), (7, 0))
    assert corners(seen(content(grey, "PNG")))[:2] == [7, 255]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 255, 9, 9, 9])
    palette.putpixel((1, 0), 1)
    for kind in ("PNG", "GIF"):
        assert corners(seen(content(palette, kind, transparency=1)))[:2] == [(0, 0, 255), (255, 255, 255)]
    key = content(Image.new("L", (1, 1), 3), "PNG", transparency=3)
    assert corners(seen(key))[0] == 255


def test_other_colour_spaces() -> None:
    assert seen(content(Image.new("CMYK", (9, 9), (0, 0, 0, 0)), "TIFF")).getpixel((0, 0)) == (255, 255, 255)
    assert seen(content(Image.new("CMYK", (9, 9), (0, 0, 0, 0)), "JPEG")).mode == "RGB"
    assert np.array(seen(content(Image.new("1", (3, 1), 1), "PNG"))).tolist() == [[255] * 3]


def claim(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims that size."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("pixels", [MAX_PIXELS + 10_000, 190_000_000, 4_000_000_000])
def test_bombs_are_refused_by_their_header(pixels: int) -> None:
    start = time.thread_time()
    with pytest.raises(DataError, match="it has more than 150 megapixels. Repair or remove it"):
        seen(claim(10_000, pixels // 10_000))
    assert time.thread_time() - start < 0.5


DEEP = np.full((4000, 4000), 300)
SEVERAL_COPIES = {
    "grey of 16 bits": lambda: content(Image.fromarray(DEEP.astype(np.uint16)), "PNG"),
    "grey as floats": lambda: content(Image.fromarray(DEEP.astype(np.float32)), "TIFF", compression="tiff_deflate"),
    "transparent": lambda: content(Image.new("RGBA", (4000, 4000), (255, 0, 0, 100)), "PNG"),
    "transparent palette": lambda: content(Image.new("P", (4000, 4000)), "PNG", transparency=1),
}
LIMITED = """
import resource, sys
from pathlib import Path
from rarefish.data.image_io import open_picture

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
most = used + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(open_picture(Path(sys.argv[1]), "it").size)
"""


@pytest.mark.parametrize("kind", SEVERAL_COPIES)
def test_a_small_file_of_many_pixels_takes_bounded_memory(tmp_path: Path, kind: str) -> None:
    """Not more than 8 bytes a pixel, as the plainest picture in colour does, and some that do not grow with it."""
    (tmp_path / "image").write_bytes(SEVERAL_COPIES[kind]())
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", LIMITED, tmp_path / "image", str(8 * DEEP.size + 64_000_000)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "(4000, 4000)\n", done.stderr


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F", "RGBA", "LA", "P", "La"])
def test_large_images_are_converted_like_small_ones(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    random = np.random.default_rng(1)
    if mode in ("I;16", "I;16B", "I", "F"):
        kind = {"I;16": "<u2", "I;16B": ">u2", "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray((random.random((37, 23)) * 60_000 - 3 * (mode == "I")).astype(kind))
    elif mode == "P":
        image = Image.fromarray(COLOURS).convert("P")
        image.info["transparency"] = bytes(range(256))
    else:
        image = Image.fromarray(random.integers(0, 256, (37, 23, 4), dtype=np.uint8), "RGBA")
        image = image if mode == "RGBA" else image.convert("LA").convert(mode)
    assert image.mode == mode
    whole = to_eight_bits(image)
    monkeypatch.setattr("rarefish.data.image_io.STRIP_PIXELS", 100)
    strips = to_eight_bits(image)
    assert strips.mode == whole.mode and strips.size == whole.size and strips.tobytes() == whole.tobytes()


def test_formats_that_need_more_memory_may_have_fewer_pixels() -> None:
    file = io.BytesIO()
    Image.new("RGB", (9_000, 9_000)).save(file, "WEBP", lossless=True, method=0)
    with pytest.raises(DataError, match="decoding 9000 × 9000 pixels of WEBP needs 1.3 GB, more than 1.2 GB"):
        seen(file.getvalue())


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, "it is a folder"),
        (make_fifo, "it is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: None, "No such file"),
        (Path.touch, "it is empty"),
        (lambda path: path.write_text("no image at all"), "not an image in a known format"),
        (
            lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
            "not an image in a known",
        ),
        (lambda path: path.write_bytes(content(Image.fromarray(COLOURS), "JPEG")[:-300]), "truncated"),
    ],
)
def test_what_is_no_image_gets_a_sentence(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    path = tmp_path / "a.png"
    make(path)
    with pytest.raises(DataError, match=f"a.png cannot be decoded: .*{why}.*. Repair or remove it.$"):
        open_picture(path, str(path))


def test_names_of_any_bytes_can_be_printed(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n\x1b[31m.png"))
    path.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        open_picture(path, str(path))
    said = str(caught.value)
    assert said.encode() and said.isprintable() and r"caf\udce9\n\x1b[31m.png" in said
    path.write_bytes(content(Image.fromarray(COLOURS), "PNG"))
    assert open_picture(path, str(path)).size == (32, 24)
    assert printable("größe 大.png") == "größe 大.png"


def broken(data: bytes, rng: random.Random) -> bytes:
    """The file with some bytes flipped, cut off, put in or left out."""
    torn = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        place = min(int(rng.random() ** 2 * len(torn)), len(torn) - 1)  # headers hold the worst
        match rng.randrange(4):
            case 0:
                torn[place] ^= 1 << rng.randrange(8)
            case 1:
                torn[place] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                torn[place:place] = rng.randbytes(rng.choice((1, 4, 40)))
            case _:
                del torn[place : place + rng.choice((1, 4, 40))]
        if not torn:
            break
    return bytes(torn[: rng.randrange(len(torn))] if torn and rng.random() < 0.2 else torn)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_an_image_or_a_data_error(kind: str) -> None:
    rng, exif = random.Random(f"damage {kind}"), Image.Exif()
    exif[0x0112] = 6
    told = {} if kind in ("GIF", "BMP", "PPM") else {"exif": exif}
    small = Image.fromarray(COLOURS)
    whole = [content(small, kind, **told), content(small.convert("L"), kind, **told)]
    if kind in ("PNG", "GIF", "TIFF", "WEBP"):
        whole.append(content(small, kind, save_all=True, append_images=[small.rotate(90)]))
    if kind == "TIFF":
        whole += [content(small, kind, compression=name) for name in ("tiff_lzw", "jpeg", "tiff_deflate")]
    opened, slowest, said = 0, 0.0, ""
    for number in range(150):
        start = time.thread_time()
        try:
            opened += seen(broken(whole[number % len(whole)], rng)).mode in ("RGB", "L")
        except DataError as error:
            said += str(error)
        slowest = max(slowest, time.thread_time() - start)
    assert 0 < opened < 150 and slowest < 3 and said.isprintable()


def test_opening_needs_no_torch() -> None:
    asked = "import sys, rarefish.data.image_io; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    assert subprocess.run([sys.executable, "-c", asked], env=environment, check=False).returncode == 0
