"""Make a pool imbalanced and split off a validation set, given labels and a seed; all functions return indices."""

from collections.abc import Mapping, Sequence

import numpy as np

from rarefish.errors import ArgumentError, DataError, list_some

Labels = np.ndarray


def step_imbalance(labels: Labels, rare: Sequence[int], ratio: float | int, seed: int) -> np.ndarray:
    """Return the indices kept when the rare classes *together* have 1/ratio as many images as all others.

    This is the paper's bias. A ratio of 1 keeps everything.
    """
    if ratio < 1:
        raise ArgumentError(f"An imbalance ratio must be 1 or more, not {ratio}.")
    is_rare = np.isin(labels, rare)
    common, others = np.flatnonzero(~is_rare), np.flatnonzero(is_rare)
    if ratio == 1:
        return np.arange(len(labels))
    count = int(len(common) / ratio)
    if count > len(others):
        raise ArgumentError(
            f"An imbalance of {ratio} needs {count} rare images; there are {len(others)}. Use a larger ratio."
        )
    kept = np.random.default_rng(seed).choice(others, count, replace=False)
    return _checked(np.sort(np.concatenate([common, kept])), labels)


def cut_each(labels: Labels, rare: Sequence[int], ratio: float | int, seed: int) -> np.ndarray:
    """Return the indices kept when *every* rare class keeps 1/ratio of its images (the paper's bias for ImageNet)."""
    if ratio < 1:
        raise ArgumentError(f"An imbalance ratio must be 1 or more, not {ratio}.")
    return subsample(labels, {c: int((labels == c).sum() / ratio) for c in rare}, seed)


def long_tail(labels: Labels, ratio: float | int, seed: int) -> np.ndarray:
    """Return the indices kept when class sizes fall exponentially, the last `ratio` times smaller than the first."""
    if ratio < 1:
        raise ArgumentError(f"An imbalance ratio must be 1 or more, not {ratio}.")
    classes = np.unique(labels)
    largest = min(int((labels == c).sum()) for c in classes)
    steps = max(len(classes) - 1, 1)
    return subsample(labels, {int(c): round(largest * ratio ** (-i / steps)) for i, c in enumerate(classes)}, seed)


def subsample(labels: Labels, counts: Mapping[int, int], seed: int) -> np.ndarray:
    """Return the indices kept when each class in `counts` keeps that many images; other classes keep all."""
    rng = np.random.default_rng(seed)
    kept = []
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        count = counts.get(int(c), len(own))
        if not 0 <= count <= len(own):
            raise ArgumentError(f"Cannot keep {count} images of class {c}: there are {len(own)}.")
        kept.append(rng.choice(own, count, replace=False))
    return _checked(np.sort(np.concatenate(kept)), labels)


def stratified(labels: Labels, size: int, seed: int) -> np.ndarray:
    """Return the indices of `size` images, equally many per class; a remainder goes to the first classes."""
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)
    if size < len(classes):
        raise ArgumentError(f"A validation set of {size} leaves out some of the {len(classes)} classes. Give more.")
    chosen = []
    for i, c in enumerate(classes):
        own, count = np.flatnonzero(labels == c), size // len(classes) + (i < size % len(classes))
        if count > len(own):
            raise ArgumentError(
                f"{size} validation images need {count} of class {c}; there are {len(own)}. Give fewer."
            )
        chosen.append(rng.choice(own, count, replace=False))
    return np.sort(np.concatenate(chosen))


def mistaken(labels: Labels, rate: float | int, num_classes: int, seed: int) -> Labels:
    """Return the labels with a fraction `rate` of them replaced by another class."""
    if not 0 <= rate <= 1:
        raise ArgumentError(f"A fraction of wrong labels must be between 0 and 1, not {rate}.")
    rng = np.random.default_rng(seed)
    wrong = rng.choice(len(labels), round(rate * len(labels)), replace=False)
    changed = labels.copy()
    changed[wrong] = (labels[wrong] + rng.integers(1, num_classes, len(wrong))) % num_classes
    return changed


def check_classes(labels: Labels, num_classes: int, name: str) -> None:
    """Raise DataError if a class has no image in the data set."""
    missing = sorted(set(range(num_classes)) - {int(c) for c in np.unique(labels)})
    if missing:
        raise DataError(f"The {name} has no image of class {list_some(missing)}. Add some, or leave the class out.")


def _checked(kept: np.ndarray, labels: Labels) -> np.ndarray:
    gone = sorted({int(c) for c in np.unique(labels)} - {int(c) for c in np.unique(labels[kept])})
    if gone:
        raise ArgumentError(f"That imbalance leaves no image of class {list_some(gone)}. Use a smaller one.")
    return kept
