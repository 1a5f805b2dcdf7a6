"""Statistics: labels saved with a bootstrap interval, and paired tests between methods."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rarefish.report.curves import Curve, labels_saved, labels_to_reach_each, of_seeds

NUM_RESAMPLES = 2000
NUM_LEVELS = 50
FEWEST_SEEDS = 5
"""With fewer seeds, a bootstrap over seeds is not meaningful."""


@dataclass(frozen=True)
class Saving:
    """Fraction of a rival's labels saved, mean over the levels that both reach, with a 95 % interval."""

    rival: str
    mean: float
    low: float
    high: float
    low_level: float
    high_level: float
    at_end: float
    """Labels saved at the rival's final level; minus infinity if we never reach it."""

    @property
    def interval(self) -> str:
        """The interval as text."""
        return "too few seeds" if np.isnan(self.low) else f"{100 * self.low:.0f} to {100 * self.high:.0f} %"

    @property
    def end(self) -> str:
        """The labels saved at the final level as text."""
        return "not reached" if np.isinf(self.at_end) else f"{100 * self.at_end:.0f} %"


def saving(ours: Curve, rival: Curve, seed: int = 0) -> Saving | None:
    """Returns the labels saved from our level after round 1 (or the rival's, if higher) to the last level both reach.

    The interval is a bootstrap over seeds, which both share. None where no level is reached by both after round 1.
    """
    shared = [s for s in ours.seeds if s in rival.seeds]
    if not shared:
        return None
    ours, rival = of_seeds(ours, shared), of_seeds(rival, shared)
    levels = _levels(ours, rival)
    if levels is None:
        return None
    rng = np.random.default_rng(seed)
    num_seeds = len(shared)
    draws = rng.integers(num_seeds, size=(NUM_RESAMPLES if num_seeds > 1 else 1, num_seeds))
    # The order of the resampled seeds does not matter: with five seeds there are 126 different resamples.
    different, place = np.unique(np.sort(draws, axis=1), axis=0, return_inverse=True)
    drawn = np.array([_saved(_of(ours, rows), _of(rival, rows), levels) for rows in different])[place.ravel()]
    low, high = np.nanpercentile(drawn, [2.5, 97.5]) if num_seeds >= FEWEST_SEEDS else (np.nan, np.nan)
    mean, at_end = _saved(ours, rival, levels), labels_saved(ours, rival)
    return Saving(rival.method, mean, float(low), float(high), levels[0], levels[-1], at_end)


def _levels(ours: Curve, rival: Curve) -> np.ndarray | None:
    low = max(ours.mean[0], rival.mean[0])
    high = min(ours.mean.max(), rival.mean.max())
    return np.linspace(low, high, NUM_LEVELS) if high > low else None


def _saved(ours: Curve, rival: Curve, levels: np.ndarray) -> float:
    """Returns the mean over levels; a level that a resample does not reach counts as reached with its last label."""
    needed = [np.minimum(labels_to_reach_each(levels, c), c.labels_spent[-1]) for c in (ours, rival)]
    return float(np.mean(1 - needed[0] / needed[1]))


def _of(curve: Curve, seeds: np.ndarray) -> Curve:
    return Curve(curve.method, curve.labels_spent, curve.values[seeds])


@dataclass(frozen=True)
class Comparison:
    """Our mean over rounds minus a rival's, paired by seed, with p-values."""

    rival: str
    difference: float
    p: float
    """p-value of a two-sided paired sign-flip permutation test."""
    p_corrected: float
    """p-value after Holm's correction over all rivals."""
    num_seeds: int


def compare(ours: Curve, rivals: Sequence[Curve], num_rounds: int | None = None) -> list[Comparison]:
    """Compares our method with each rival, paired by seed, on the mean over their `num_rounds` first common rounds."""
    found = []
    for rival in rivals:
        shared = [seed for seed in ours.seeds if seed in rival.seeds]
        if not shared:
            continue
        mine, other = of_seeds(ours, shared).values, of_seeds(rival, shared).values
        last = min(mine.shape[1], other.shape[1], num_rounds or mine.shape[1])
        difference = (mine[:, :last] - other[:, :last]).mean(axis=1)
        found.append((rival.method, float(difference.mean()), sign_flip_p(difference), len(shared)))
    corrected = holm([p for _, _, p, _ in found])
    return [Comparison(name, mean, p, q, n) for (name, mean, p, n), q in zip(found, corrected, strict=True)]


def sign_flip_p(differences: np.ndarray) -> float:
    """Returns the p-value: the fraction of sign patterns with a mean at least as far from 0.

    Exact up to 16 seeds; above, 100,000 random patterns are drawn.
    """
    count = len(differences)
    if count <= 16:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(100_000, count))
    means = np.abs(signs @ differences) / count
    return float((means >= abs(differences.mean()) - 1e-12).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Returns p-values after Holm's correction for multiple tests."""
    order = np.argsort(p, kind="stable")
    corrected, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = largest
    return corrected
