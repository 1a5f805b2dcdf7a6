"""When to stop: the expected gain in recall on the failing classes from the next labels.

After each round, the recall of the failing classes is measured on the validation set, on which the model is never
trained. A saturating curve, A - B exp(-n / τ), is fitted to these points, and its rise over the next labels is the
expected gain. The interval comes from the sampling error of the measured points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STEP = 100
"""Number of labels for which the gain is estimated."""
FEWEST_ROUNDS = 3
SCALES = np.geomspace(30, 30_000, 40)
"""Candidate values of τ, in labels."""
NUM_SAMPLES = 200


@dataclass(frozen=True)
class Outlook:
    """The expected gain in recall on the failing classes from the next 100 labels, with a 90 % interval."""

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
    """Returns the classes whose recall (after the first round) is below the mean over classes."""
    known = np.array(recall, dtype=float)
    return np.flatnonzero(known < np.nanmean(known)).tolist()


def expect_gain(labels_spent: Sequence[int], recall: Sequence[float], num_images: int) -> Outlook | None:
    """Returns the expected gain, given the recall after each round on `num_images` validation images.

    Returns None before the third round or without validation images.
    """
    if len(recall) < FEWEST_ROUNDS or num_images < 1:
        return None
    spent, points = np.array(labels_spent, dtype=float), np.array(recall, dtype=float)
    (gain,), (variance,) = (value.tolist() for value in fit_rise(spent, points[None]))
    # Two sources of variance: the sample of validation images, and the randomness of each training run.
    deviation = np.sqrt(points * (1 - points) / num_images + variance)
    samples = np.random.default_rng(0).normal(points, deviation, size=(NUM_SAMPLES, len(points))).clip(0, 1)
    low, high = np.quantile(fit_rise(spent, samples)[0], [0.05, 0.95])
    return Outlook(gain, min(float(low), gain), max(float(high), gain))


def fit_rise(spent: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fits A - B exp(-n / τ) to each row; returns its rise over the next labels and the variance of its residuals.

    The rise is never negative and never leads to a recall above 1. Each round has twice the weight of the previous one,
    because many curves rise slowly at first, then fast, and then level off.
    """
    weight = np.exp2(np.arange(len(spent)))
    weight /= weight.sum()
    smallest, gain = np.full(len(points), np.inf), np.zeros(len(points))
    for scale in SCALES:
        decay = np.exp(-(spent - spent[0]) / scale)
        slope = np.minimum(0.0, _weighted_slope(decay, points, weight))  # B >= 0: more labels do not lower the recall
        residual = points - slope[:, None] * decay
        from_mean = residual - (weight * residual).sum(axis=-1, keepdims=True)
        variance = (weight * np.square(from_mean)).sum(axis=-1)
        now, then = (np.exp(-(n - spent[0]) / scale) for n in (spent[-1], spent[-1] + STEP))
        rise = np.maximum(0.0, np.minimum(slope * (then - now), 1 - points[:, -1])) + 0.0  # not -0.0
        gain, smallest = np.where(variance < smallest, rise, gain), np.minimum(variance, smallest)
    return gain, smallest


def _weighted_slope(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns the slope of the weighted least-squares line through the points of each row of y."""
    from_mean = x - (weight * x).sum()
    spread = float((weight * np.square(from_mean)).sum())
    return (weight * from_mean * y).sum(axis=-1) / spread if spread > 0 else np.zeros(len(y))
