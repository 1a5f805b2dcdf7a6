"""Make a pool imbalanced and split off a validation set, given labels and a seed. Most functions return indices."""

from collections.abc import Mapping, Sequence

import numpy as np

from rarefish.errors import ArgumentError, DataError, list_some

Labels = np.ndarray


def step_imbalance(labels: Labels, rare: Sequence[int], ratio: float | int, seed: int) -> np.ndarray:
    """Returns the indices that remain if the rare classes *together* keep 1/ratio as many images as all others.

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
            f"An imbalance of {ratio} needs {count} rare images, but there are {len(others)}. Use a larger ratio."
        )
    kept = np.random.default_rng(seed).choice(others, count, replace=False)
    return _checked(np.sort(np.concatenate([common, kept])), labels)


def cut_each(labels: Labels, rare: Sequence[int], ratio: float | int, seed: int) -> np.ndarray:
    """Returns the indices left if *every* rare class keeps 1/ratio of its images (as in the paper for ImageNet)."""
    if ratio < 1:
        raise ArgumentError(f"An imbalance ratio must be 1 or more, not {ratio}.")
    return subsample(labels, {c: int((labels == c).sum() / ratio) for c in rare}, seed)


def long_tail(labels: Labels, ratio: float | int, seed: int) -> np.ndarray:
    """Returns the indices that remain if class sizes fall exponentially; the last is 1/ratio of the first."""
    if ratio < 1:
        raise ArgumentError(f"An imbalance ratio must be 1 or more, not {ratio}.")
    classes = np.unique(labels)
    largest = min(int((labels == c).sum()) for c in classes)
    steps = max(len(classes) - 1, 1)
    return subsample(labels, {int(c): round(largest * ratio ** (-i / steps)) for i, c in enumerate(classes)}, seed)


def subsample(labels: Labels, counts: Mapping[int, int], seed: int) -> np.ndarray:
    """Returns the indices that remain if each class in `counts` keeps that many images; other classes keep all."""
    rng = np.random.default_rng(seed)
    kept = []
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        count = counts.get(int(c), len(own))
        if not 0 <= count <= len(own):
            raise ArgumentError(f"Cannot keep {count} images of class {c}: there are only {len(own)}.")
        kept.append(rng.choice(own, count, replace=False))
    return _checked(np.sort(np.concatenate(kept)), labels)


def stratified(labels: Labels, size: int, seed: int) -> np.ndarray:
    """Returns the indices of `size` images, the same number per class; the first classes get one of the remainder."""
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)
    if size < len(classes):
        raise ArgumentError(
            f"A validation set of {size} images leaves out some of the {len(classes)} classes. Use more images."
        )
    chosen = []
    for i, c in enumerate(classes):
        own, count = np.flatnonzero(labels == c), size // len(classes) + (i < size % len(classes))
        if count > len(own):
            raise ArgumentError(
                f"{size} validation images need {count} of class {c}, but there are {len(own)}. Use fewer."
            )
        chosen.append(rng.choice(own, count, replace=False))
    return np.sort(np.concatenate(chosen))


def mistaken(labels: Labels, rate: float | int, num_classes: int, seed: int) -> Labels:
    """Returns the labels after replacing a fraction `rate` of them with other classes."""
    if not 0 <= rate <= 1:
        raise ArgumentError(f"The fraction of wrong labels must be between 0 and 1, not {rate}.")
    rng = np.random.default_rng(seed)
    wrong = rng.choice(len(labels), round(rate * len(labels)), replace=False)
    changed = labels.copy()
    changed[wrong] = (labels[wrong] + rng.integers(1, num_classes, len(wrong))) % num_classes
    return changed


def check_classes(labels: Labels, num_classes: int, name: str) -> None:
    """Raises DataError if a class has no image in the dataset."""
    missing = sorted(set(range(num_classes)) - {int(c) for c in np.unique(labels)})
    if missing:
        raise DataError(f"The {name} has no images of class {list_some(missing)}. Add some, or leave the class out.")


def _checked(kept: np.ndarray, labels: Labels) -> np.ndarray:
    gone = sorted({int(c) for c in np.unique(labels)} - {int(c) for c in np.unique(labels[kept])})
    if gone:
        raise ArgumentError(f"This imbalance leaves no images of class {list_some(gone)}. Use a smaller one.")
    return kept
