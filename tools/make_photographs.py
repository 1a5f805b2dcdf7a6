"""Make a folder of photographs with rare classes, for the guide on photographs: a pool, trusted images and a test set.

    python tools/make_photographs.py DATA/caltech_100 images [--classes 100] [--trusted 3] [--rarer 5]

DATA is the folder with load.py, which decodes the photographs. Half of the classes become rarer in the pool by the
given factor. `images/answers.csv` contains the class of each pool image, for a simulated annotator.
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def make_photographs(
    data: Path,
    folder: Path,
    *,
    num_classes: int = 100,
    num_trusted: int = 3,
    rarer: int = 5,
    most: int | None = None,
    seed: int = 0,
) -> dict[str, int]:
    """Writes folder/pool, folder/validation/CLASS, folder/test/CLASS and answers.csv; returns the number of each.

    Args:
        data: The folder caltech_100.
        folder: A new folder.
        num_classes: The number of classes, drawn at random.
        num_trusted: The number of validation images of each class.
        rarer: The pool keeps one in so many images of every second class.
        most: The maximum number of images of a class in the pool and in the test set.
        seed: The random seed.
    """
    sys.path.insert(0, str(data.resolve().parent))
    from load import load  # pyright: ignore[reportMissingImports]

    content: dict[str, Any] = load(data.name)
    names = json.loads((data / "classes.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(names))[:num_classes].tolist()
    answers, counts = list[tuple[str, str]](), {"pool": 0, "validation": 0, "test": 0}
    for place, number in enumerate(chosen):
        rows = rng.permutation(np.flatnonzero(content["train_y"] == number))
        pool = rows[num_trusted:]
        pool = pool[: max(1, len(pool) // rarer)] if place % 2 else pool
        parts = {
            f"validation/{names[number]}": content["train_x"][rows[:num_trusted]],
            f"test/{names[number]}": content["test_x"][content["test_y"] == number][:most],
        }
        for part, images in parts.items():
            for at, image in enumerate(images):
                save(image, folder / part / f"{at:03d}.jpg")
            counts[part.partition("/")[0]] += len(images)
        for row in pool[:most]:
            save(content["train_x"][row], folder / "pool" / f"{row:05d}.jpg")
            answers.append((f"{row:05d}.jpg", names[number]))
    with (folder / "answers.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *sorted(answers)])
    return {**counts, "pool": len(answers)}


def save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--trusted", type=int, default=3)
    parser.add_argument("--rarer", type=int, default=5)
    parser.add_argument("--most", type=int)
    arguments = parser.parse_args()
    if not (arguments.data / "classes.json").is_file():
        parser.error(f"{arguments.data} does not contain the photographs.")
    counts = make_photographs(
        arguments.data,
        arguments.folder,
        num_classes=arguments.classes,
        num_trusted=arguments.trusted,
        rarer=arguments.rarer,
        most=arguments.most,
    )
    print(", ".join(f"{count:,} {part} images" for part, count in counts.items()))


if __name__ == "__main__":
    main()
