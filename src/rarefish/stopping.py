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
    chance = np.random.default_rng(0)
    drawn = chance.binomial(num_images, points.clip(0, 1), size=(DRAWS, len(points))) / num_images
    low, high = np.quantile([rise(spent, each) for each in drawn], [0.05, 0.95])
    return Outlook(float(rise(spent, points)), float(low), float(high))


def rise(spent: np.ndarray, points: np.ndarray) -> float:
    """Of the best curve A - B exp(-n / τ) over the next labels; never a fall, and never over 1."""
    best, found = np.inf, 0.0
    for scale in SCALES:
        decay = np.exp(-(spent - spent[0]) / scale)
        slope = min(0.0, _slope(decay, points))  # B >= 0: more labels do not make it worse
        level = points.mean() - slope * decay.mean()
        error = float(np.square(points - level - slope * decay).sum())
        if error < best:
            now, then = (np.exp(-(n - spent[0]) / scale) for n in (spent[-1], spent[-1] + STEP))
            best, found = error, max(0.0, min(slope * (then - now), 1 - points[-1]))
    return found


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of the straight line through the points."""
    spread = float(np.square(x - x.mean()).sum())
    return float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
