"""When to stop: what the next labels would bring to the classes that fail, from what is known while labeling.

After each round the validation set, which the model never learns from, says how often the failing classes are
recognised. A curve that rises and levels off, A - B exp(-n / τ), is laid through these points; its rise over the next
labels is the gain to expect. How far chance in the validation set could have moved the points gives the interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STEP = 100
"""Labels for which the gain is told."""
FEWEST_ROUNDS = 3
SCALES = np.geomspace(30, 30_000, 40)
"""Candidates for τ, in labels."""
DRAWS = 200


@dataclass(frozen=True)
class Outlook:
    """The gain in recall on the failing classes to expect of the next 100 labels, with a 90 % interval."""

    gain: float
    low: float
    high: float

    @property
    def sentence(self) -> str:
        return (
            f"The next {STEP} labels should add {100 * self.gain:.1f} points ({100 * self.low:.1f} to "
            f"{100 * self.high:.1f}) of recall on the classes that fail."
        )


def failing_classes(recall: Sequence[float]) -> list[int]:
    """Classes recognised less often than the mean of all, as the first round leaves them."""
    known = np.array(recall, dtype=float)
    return np.flatnonzero(known < np.nanmean(known)).tolist()


def expect_gain(labels_spent: Sequence[int], recall: Sequence[float], num_images: int) -> Outlook | None:
    """From the recall after each round, measured on so many validation images; None while it is too early to tell."""
    if len(recall) < FEWEST_ROUNDS or num_images < 1:
        return None
    spent, points = np.array(labels_spent, dtype=float), np.array(recall, dtype=float)
    found, scatter = rise(spent, points)
    # Two kinds of chance: which images are in the validation set, and how one training turned out.
    deviation = np.sqrt(points * (1 - points) / num_images + scatter)
    drawn = np.random.default_rng(0).normal(points, deviation, size=(DRAWS, len(points))).clip(0, 1)
    low, high = np.quantile([rise(spent, each)[0] for each in drawn], [0.05, 0.95])
    return Outlook(found, min(float(low), found), max(float(high), found))


def rise(spent: np.ndarray, points: np.ndarray) -> tuple[float, float]:
    """Of the best curve A - B exp(-n / τ) over the next labels, never a fall and never over 1; and the mean square of
    its errors. Each round counts twice as much as the one before: many curves rise slowly, then fast, then level off.
    """
    weight = np.exp2(np.arange(len(points)))
    weight /= weight.sum()
    best, found = np.inf, 0.0
    for scale in SCALES:
        decay = np.exp(-(spent - spent[0]) / scale)
        slope = min(0.0, _slope(decay, points, weight))  # B >= 0: more labels do not make it worse
        error = points - slope * decay
        scatter = float((weight * np.square(error - (weight * error).sum())).sum())
        if scatter < best:
            now, then = (np.exp(-(n - spent[0]) / scale) for n in (spent[-1], spent[-1] + STEP))
            best, found = scatter, max(0.0, min(float(slope * (then - now)), float(1 - points[-1])))
    return found, best


def _slope(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """Of the straight line through the points."""
    from_mean = x - (weight * x).sum()
    spread = float((weight * np.square(from_mean)).sum())
    return float((weight * from_mean * y).sum()) / spread if spread > 0 else 0.0
