"""Write a folder of images to try a workspace with: digits, five of them rare. Run: python examples/02_make_folder.py

Writes images/pool (without labels), images/validation and images/test (one subfolder per class), and
images/answers.csv, which has the true label of each pool image.
"""

import csv
from pathlib import Path

from PIL import Image

from rarefish.data.digits import read_digits

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COMMON, TRUSTED, TEST = 240, 30, 60  # images per class; the rare classes five to nine have only 12 in the pool
folder = Path("images")
pool, validation, test = read_digits()
counts: dict[tuple[str, int], int] = {}
answers = []
for part, digits, most in (("pool", pool, COMMON), ("validation", validation, TRUSTED), ("test", test, TEST)):
    for number, (pixels, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
        label = int(label)
        counts[part, label] = counts.get((part, label), 0) + 1
        if counts[part, label] > most:
            continue
        place = folder / part / ("" if part == "pool" else NAMES[label]) / f"{number:05d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0]).save(place)
        if part == "pool":
            answers.append((place.name, NAMES[label]))
with (folder / "answers.csv").open("w", newline="") as file:
    csv.writer(file).writerows([("path", "label"), *answers])
print(f"{len(answers):,} pool images without labels, {TRUSTED} validation images per class: {folder.resolve()}")
