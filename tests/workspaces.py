"""Workspaces for tests: real folders of real images, with a round of picks where one is wanted."""

import json
import os
from pathlib import Path

import numpy as np
from PIL import Image

from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store, create_store, now

CLASSES = ("cat", "dog", "owl")


def draw(path: Path, kind: int, seed: int, size: int = 24) -> None:
    """A picture that a small network can tell: a bright bar, lying, standing or slanting, on noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 90, (size, size, 3))
    at = int(rng.integers(4, size - 6))
    places = np.arange(size)
    rows = [np.full(size, at), places, (places + at) % size][kind]
    columns = [places, np.full(size, at), places][kind]
    for width in range(3):
        pixels[(rows + (width if kind == 0 else 0)) % size, (columns + (width if kind else 0)) % size] = 230
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def replace_unnoticed(path: Path) -> None:
    """Another picture in the place of a file, of the same size and time."""
    before = path.stat()
    draw(path, 2, 4242, size=12)
    content = path.read_bytes()
    assert len(content) < before.st_size
    path.write_bytes(content.ljust(before.st_size, b"\0"))  # what comes after the end of a PNG is not looked at
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def make_images(folder: Path, pool: int = 20, trusted: int = 6) -> None:
    """pool/*.png, and validation/CLASS/*.png with so many images of each class."""
    for number in range(pool):
        draw(folder / "pool" / f"image {number:05d}.png", number % len(CLASSES), number)
    for kind, name in enumerate(CLASSES):
        for number in range(trusted):
            draw(folder / "validation" / name / f"{number}.png", kind, 100_000 + 1_000 * kind + number)


def make_workspace(folder: Path, pool: int = 20, trusted: int = 6, picks: int = 0) -> Store:
    """A workspace in folder/work over images beside it; `picks` of the pool are asked about in round 1."""
    make_images(folder, pool, trusted)
    store = create_store(folder / "work", CLASSES)
    index(store, "validation", *list_trusted(folder / "validation"), jobs=1, shown=False)
    index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False)
    if picks:
        add_round(store, picks)
    return store


def add_round(store: Store, count: int) -> None:
    """As a selection would leave it."""
    with store.writing() as connection:
        (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM round").fetchone()
        connection.execute("INSERT INTO round VALUES (?, ?, ?)", (number, now(), json.dumps({})))
        images = connection.execute(
            "SELECT id FROM image WHERE part = 'pool' AND state = 'ready' AND id NOT IN (SELECT image FROM pick) "
            "ORDER BY id LIMIT ?",
            (count,),
        ).fetchall()
        centers = connection.execute(
            "SELECT id, class FROM image WHERE part = 'validation' AND state = 'ready' ORDER BY id"
        ).fetchall()
        for rank, (image,) in enumerate(images):
            center = centers[rank % len(centers)]
            wrong = (center["class"] + 1) % len(CLASSES)
            probabilities = json.dumps([[center["class"], 0.7], [wrong, 0.3]])
            connection.execute(
                "INSERT INTO pick VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)",
                (image, number, rank, center["id"], wrong, 1 - rank / 100, wrong, probabilities),
            )
