"""Select frames of videos, at most one per shot. Run: python examples/04_video.py

The rows are frames, and the groups are shots: frames of a shot are almost the same, so one of them is enough.
Replace `draw_shot` by your videos, and `embed` by your model or by rarefish.embed().
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import rarefish
from rarefish.training.linear_head import fit_linear_head

CLASSES = ("disc", "square", "triangle", "star")  # stars are rare in the videos
CORNERS, STAR, SIZE, LABELED, BUDGET = (40, 4, 3, 10), 3, 96, 6, 20


def draw_shot(generator: np.random.Generator, kind: int, num_frames: int) -> list[Image.Image]:
    """Returns the frames of a shot, in which a shape moves slowly and turns a little."""
    background, color = generator.integers(20, 110, 3), tuple(int(value) for value in generator.integers(150, 256, 3))
    place, turn = generator.uniform(38, 58, 2), generator.uniform(-0.4, 0.4)
    motion, spin = generator.uniform(-0.3, 0.3, 2), generator.uniform(-0.01, 0.01)
    reach = np.full(CORNERS[kind], generator.uniform(22, 34))
    if kind == STAR:
        reach[::2] *= 0.45
    frames = []
    for time in range(num_frames):
        noise = generator.integers(-3, 4, (SIZE, SIZE, 3))
        frame = Image.fromarray((background + noise).astype(np.uint8))
        angles = turn + spin * time + 2 * np.pi * np.arange(len(reach)) / len(reach)
        points = place + motion * time + reach[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        ImageDraw.Draw(frame).polygon([tuple(point) for point in points], fill=color)
        frames.append(frame)
    return frames


def embed(frames: list[Image.Image]) -> np.ndarray:
    """Returns a vector per frame: histograms of the directions of edges in 4 x 4 parts, and 4 x 4 mean colors."""
    vectors = []
    for frame in frames:
        pixels = np.asarray(frame.resize((48, 48), Image.Resampling.BOX), dtype=np.float32) / 255
        down, right = np.gradient(pixels.mean(axis=2))
        strength = np.hypot(down, right)
        direction = ((np.arctan2(down, right) + np.pi) / (2 * np.pi) * 8).astype(int) % 8
        edges = [(strength * (direction == number)).reshape(4, 12, 4, 12).sum(axis=(1, 3)) for number in range(8)]
        colors = pixels.reshape(4, 12, 4, 12, 3).mean(axis=(1, 3))
        vectors.append(np.concatenate([np.sqrt(edges).ravel(), colors.ravel()]))
    return np.array(vectors, dtype=np.float32)


def find_shots(frames: list[Image.Image], video: np.ndarray) -> np.ndarray:
    """Returns the number of each frame's shot, which begins with a video or with a large change of the pixels."""
    small = np.stack([np.asarray(frame.resize((16, 16), Image.Resampling.BOX), dtype=np.float32) for frame in frames])
    change = np.abs(np.diff(small, axis=0)).mean(axis=(1, 2, 3))
    is_cut = (change > 5 * np.median(change)) | (np.diff(video) != 0)
    return np.concatenate([[0], np.cumsum(is_cut)])


generator = np.random.default_rng(0)
frames: list[Image.Image] = []
video, kinds = [], []
for number in range(30):
    for _ in range(generator.integers(3, 6)):  # shots per video
        is_rare = number >= LABELED and generator.random() < 0.1
        kind = STAR if is_rare else int(generator.integers(0, 3))
        shot = draw_shot(generator, kind, int(generator.integers(8, 16)))
        frames += shot
        video += [number] * len(shot)
        kinds += [kind] * len(shot)
embeddings, video, labels = embed(frames), np.array(video), np.array(kinds)
trusted_labels = np.repeat(np.arange(len(CLASSES)), 12)
trusted = embed([draw_shot(generator, kind, 1)[0] for kind in trusted_labels.tolist()])
shot_of_frame = find_shots(frames, video)
_, first_frames = np.unique(shot_of_frame, return_index=True)
print(f"{len(frames)} frames of {video[-1] + 1} videos have {len(first_frames)} shots.")

# The model was trained on one frame of each shot of the first videos, which contain no stars.
known = first_frames[video[first_frames] < LABELED]
head = fit_linear_head(embeddings[known], labels[known], len(CLASSES))
labeled = dict(zip(known.tolist(), labels[known].tolist(), strict=True))
print("method    groups  shots  shots with stars")
for method in ("fisher", "coverage"):
    for groups in (None, shot_of_frame):
        selection = rarefish.select(
            head,
            embeddings,
            (trusted, trusted_labels),
            budget=BUDGET,
            method=method,
            groups=groups,
            labeled=labeled,
            progress=False,
        )
        rows = selection.indices.numpy()
        num_shots, num_stars = (len(np.unique(shot_of_frame[r])) for r in (rows, rows[labels[rows] == STAR]))
        print(f"{method:9} {'none' if groups is None else 'shots':6} {num_shots:6} {num_stars:17}")
star_shots = len(np.unique(shot_of_frame[labels == STAR]))
expected = BUDGET * star_shots / (len(first_frames) - len(known))
print(f"A random choice of {BUDGET} shots contains {expected:.1f} of the {star_shots} shots with stars on average.")

folder = Path("frames_to_label")
folder.mkdir(exist_ok=True)
for row in rows:
    frames[row].save(folder / f"video_{video[row]:02d}_frame_{row:05d}.png")
print(f"{len(rows)} frames, one per shot, written to {folder}/")
