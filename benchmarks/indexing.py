"""Speed of indexing images in a workspace: reading, hashing, decoding and checking for duplicates.

    python benchmarks/indexing.py [--images 100000]

The files are JPEG images of 256×256 pixels and PNG images of 32×32 pixels, made from about a hundred pictures. Each has
different bytes after its end, so that none is a duplicate. The floor is the rate of one process that reads and decodes
the same files with Pillow alone, times the number of cores.
"""

import argparse
import io
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rarefish.data.file_listing import list_pool
from rarefish.workspace.indexing import index
from rarefish.workspace.store import create_store

PICTURES = 400
LOOKED = 4_000
"""Files that the floor is measured on."""
KINDS = {"JPEG, 256×256": ("JPEG", 256), "PNG, 32×32": ("PNG", 32)}


def make_files(folder: Path, count: int, form: str, edge: int) -> list[Path]:
    rng, pictures = np.random.default_rng(0), []
    for _ in range(min(PICTURES, count)):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((edge, edge), Image.Resampling.BICUBIC).save(buffer, form)
        pictures.append(buffer.getvalue())
    paths = []
    for number in range(count):
        place = folder / f"{number // 1000:04d}"
        place.mkdir(parents=True, exist_ok=True)
        paths.append(place / f"{number:07d}.{form.lower()}")
        paths[-1].write_bytes(pictures[number % len(pictures)] + f"{number:016d}".encode())
    return paths


def measure(name: str, count: int) -> dict[str, Any]:
    form, edge = KINDS[name]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as own:
        paths = make_files(Path(own) / "pool", count, form, edge)
        began = time.perf_counter()
        for path in paths[:LOOKED]:
            with Image.open(io.BytesIO(path.read_bytes())) as picture:
                picture.load()
        floor = cores * min(LOOKED, count) / (time.perf_counter() - began)
        store = create_store(Path(own) / "work", ("a", "b"))
        began = time.perf_counter()
        found = index(store, "pool", *list_pool(Path(own) / "pool"), shown=False)
        rate = count / (time.perf_counter() - began)
        assert found.taken == count, found
        began = time.perf_counter()
        index(store, "pool", *list_pool(Path(own) / "pool"), shown=False)
        again = count / (time.perf_counter() - began)
    return {
        "name": f"images indexed, {count:,} files, {name}",
        "value": round(rate),
        "unit": "images/s",
        "baseline": {"the same command once more": round(again)},
        "ratio": {"floor": round(rate / floor, 3)},
        "floor": round(floor),
        "device": f"cpu, {cores} cores",
        "versions": {"python": platform.python_version(), "pillow": Image.__version__},
        "command": "python benchmarks/indexing.py",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/indexing.json"))
    arguments = parser.parse_args()
    figures = [measure(name, arguments.images) for name in KINDS]
    print(json.dumps(figures, indent=2))
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
