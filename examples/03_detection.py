"""Select images for a detector by the boxes that it finds. Run: python examples/03_detection.py

The rows are boxes, and the groups are images: a box explains why its image should be labeled, and each image is chosen
at most once. Replace `draw_scene` by your images, and `propose` and `embed` by your detector.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import rarefish
from rarefish.data import match_boxes
from rarefish.exchange import Box, BoxedImage, export_boxes
from rarefish.training.linear_head import fit_linear_head

CLASSES = ("background", "circle", "square", "triangle", "star")  # background: boxes that show no object
SIZE, LABELED, BUDGET = 96, 30, 15
SCRIBBLE, STAR, HALF_DISC = 0, 4, 5  # stars and half discs are rare; scribbles and half discs are not objects


@dataclass
class Scene:
    """An image with the true boxes (left, top, right, bottom) and classes of its objects."""

    image: Image.Image
    boxes: np.ndarray
    labels: np.ndarray


def draw_scene(generator: np.random.Generator, chance_of_rare: float) -> Scene:
    """Returns a noisy image with some shapes, scribbles and, with the given probability, a star or a half disc."""
    image = Image.fromarray(generator.integers(90, 120, (SIZE, SIZE, 3), dtype=np.uint8))
    draw, boxes, labels = ImageDraw.Draw(image), [], []
    cells = generator.permutation(9)[: generator.integers(3, 7)]  # one shape per cell of a grid, so that none overlap
    for number, cell in enumerate(cells):
        kind = int(generator.integers(0, 4))
        if number == 0 and generator.random() < chance_of_rare:
            kind = int(generator.choice([STAR, HALF_DISC]))
        radius, turn = generator.uniform(8, 13), generator.uniform(0, 2 * np.pi)
        center = 32 * np.array([cell % 3, cell // 3]) + generator.uniform(15, 17, 2)
        color = tuple(int(value) for value in generator.integers(160, 256, 3))
        corners = (7, 40, 4, 3, 10, 40)[kind]
        reach = np.full(corners, radius)
        if kind == STAR:
            reach[::2] *= 0.45
        if kind == SCRIBBLE:
            reach *= generator.uniform(0.2, 1, corners)
        angles = turn + 2 * np.pi * np.arange(corners) / (corners if kind != HALF_DISC else 2 * corners)
        points = center + reach[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        outline = [tuple(point) for point in points]
        if kind in (SCRIBBLE, STAR):
            draw.line(outline if kind == SCRIBBLE else [*outline, outline[0]], fill=color, width=2)
        else:
            draw.polygon(outline, fill=color)
        if kind not in (SCRIBBLE, HALF_DISC):
            boxes.append([*points.min(axis=0), *points.max(axis=0)])
            labels.append(kind)
    return Scene(image, np.array(boxes).reshape(-1, 4), np.array(labels, dtype=int))


def propose(image: Image.Image) -> np.ndarray:
    """Returns boxes that may contain objects: those around each connected region that is brighter than the rest."""
    is_bright = np.asarray(image).max(axis=2) > 140
    region = np.where(is_bright, np.arange(1, SIZE * SIZE + 1).reshape(SIZE, SIZE), 0)
    while True:  # each pixel takes the largest number of its neighbors, until nothing changes
        padded = np.pad(region, 1)
        around = [padded[y : y + SIZE, x : x + SIZE] for y in range(3) for x in range(3)]
        larger = np.where(is_bright, np.max(around, axis=0), 0)
        if (larger == region).all():
            break
        region = larger
    places = [np.nonzero(region == number) for number in np.unique(region[region > 0])]
    boxes = [[x.min(), y.min(), x.max() + 1, y.max() + 1] for y, x in places if len(x) > 20]
    return np.array(boxes, dtype=float).reshape(-1, 4)


def embed(image: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """Returns a vector per box: histograms of the directions of edges in the 4 x 4 parts of the box."""
    vectors = []
    for box in boxes:
        pixels = np.asarray(image.convert("L").resize((24, 24), box=tuple(box)), dtype=np.float32) / 255
        down, right = np.gradient(pixels)
        strength = np.hypot(down, right)
        direction = ((np.arctan2(down, right) + np.pi) / (2 * np.pi) * 8).astype(int) % 8
        parts = [strength * (direction == number) for number in range(8)]
        vectors.append(np.sqrt([part.reshape(4, 6, 4, 6).sum(axis=(1, 3)) for part in parts]).ravel())
    return np.array(vectors, dtype=np.float32).reshape(len(boxes), -1)


@dataclass
class Candidates:
    """The boxes of several images, one row per box."""

    boxes: np.ndarray
    image: np.ndarray
    embeddings: np.ndarray


def find_candidates(scenes: list[Scene]) -> Candidates:
    """Returns the boxes of all images."""
    boxes = [propose(scene.image) for scene in scenes]
    embeddings = [embed(scene.image, found) for scene, found in zip(scenes, boxes, strict=True)]
    image = np.repeat(np.arange(len(scenes)), [len(found) for found in boxes])
    return Candidates(np.concatenate(boxes), image, np.concatenate(embeddings))


def true_classes(scenes: list[Scene], candidates: Candidates, scores: np.ndarray) -> np.ndarray:
    """Returns the class of the true box that each candidate shows, or 0, the background, if it shows none."""
    labels = np.zeros(len(candidates.boxes), dtype=int)
    for number, scene in enumerate(scenes):
        rows = np.flatnonzero(candidates.image == number)
        match = match_boxes(candidates.boxes[rows], scores[rows], scene.boxes)
        labels[rows[match >= 0]] = scene.labels[match[match >= 0]]
    return labels


generator = np.random.default_rng(0)
pool = [draw_scene(generator, 0 if number < LABELED else 0.1) for number in range(200)]
validation = [draw_scene(generator, 0.8) for _ in range(30)]
in_pool, trusted = find_candidates(pool), find_candidates(validation)

# The detector: a classifier of boxes, trained on the first images of the pool, which contain no stars.
known = np.flatnonzero(in_pool.image < LABELED)
known_labels = true_classes(pool[:LABELED], in_pool, np.ones(len(in_pool.boxes)))[known]
detector = fit_linear_head(in_pool.embeddings[known], known_labels, len(CLASSES))
pool_probabilities, probabilities = (detector.probabilities(c.embeddings).numpy() for c in (in_pool, trusted))

# Failures: objects that the detector takes for background, the reverse, and objects of one class taken for another.
found = probabilities.argmax(axis=1)
labels = true_classes(validation, trusted, 1 - probabilities[:, 0])
is_failure = found != labels


def describe(row: int) -> str:
    """Returns what the detector gets wrong about a validation box."""
    if found[row] == 0:
        return f"the missed {CLASSES[labels[row]]}"
    return f"the false {CLASSES[found[row]]}"


num_missed, num_false = ((labels > 0) & is_failure).sum(), ((labels == 0) & is_failure).sum()
print(
    f"Of {len(labels)} validation boxes, {num_missed} objects are missed or confused, and {num_false} boxes are false."
)

selection = rarefish.select(
    detector,
    in_pool.embeddings,
    (trusted.embeddings, labels),
    budget=BUDGET,
    failures=is_failure.tolist(),
    groups=in_pool.image,
    labeled=dict(zip(known.tolist(), known_labels.tolist(), strict=True)),
    progress=False,
)

# Each chosen row is the box that explains why its image should be labeled.
chosen = in_pool.image[selection.indices.numpy()]
for image, (row, _, center, _) in zip(chosen, selection.rows(), strict=True):
    left, top, right, bottom = in_pool.boxes[row].astype(int)
    why = f"resembles {describe(center)} in validation image {trusted.image[center]}"
    print(f"image {image:03d}: the box ({left}, {top}, {right}, {bottom}) {why}")
stars = [number for number, scene in enumerate(pool) if STAR in scene.labels]
expected = BUDGET * len(stars) / (len(pool) - LABELED)
num_stars = len(set(chosen.tolist()) & set(stars))
print(f"{num_stars} of {BUDGET} chosen images contain a star; a random choice has {expected:.1f} on average")

# Write the boxes of the chosen images, so that annotators correct boxes instead of drawing them. The selection has
# learned from the validation labels, so its classes for the boxes that it chose are better than those of the detector.
pool_probabilities[selection.indices] = selection.class_probabilities
guesses = pool_probabilities.argmax(axis=1)
folder = Path("to_label")
folder.mkdir(exist_ok=True)
images = []
for number in chosen:
    pool[number].image.save(folder / f"{number:03d}.png")
    rows = np.flatnonzero((in_pool.image == number) & (guesses > 0))
    boxes = []
    for row in rows:
        left, top, right, bottom = in_pool.boxes[row].tolist()
        score = float(pool_probabilities[row, guesses[row]])
        boxes.append(Box(left, top, right, bottom, CLASSES[guesses[row]], score))
    images.append(BoxedImage(f"{number:03d}.png", SIZE, SIZE, tuple(boxes)))
for format, target in (("coco", "coco.json"), ("cvat", "cvat.xml"), ("label-studio", "label_studio")):
    export_boxes(images, CLASSES[1:], format, Path(target))
print(f"{sum(len(image.boxes) for image in images)} boxes written to coco.json, cvat.xml and label_studio/")
