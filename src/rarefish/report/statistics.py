"""Statistics over seeds: our lead with a t interval and p-values, and the labels saved with a jackknife interval.

The interval of the lead is Student's t on the paired differences of the seeds. The interval of the labels saved is
Student's t with a jackknife over seeds. `tests/report/test_statistics.py` simulates experiments with five and ten
seeds and checks that both contain the true value as often as they claim. A percentile or BCa bootstrap over five
seeds does so in only 80 to 85 % of such experiments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from rarefish.report.curves import Curve, labels_needed, labels_saved, of_seeds

NUM_LEVELS = 50
FEWEST_SEEDS = 5
"""Fewer seeds give no interval and no p-value: with three, skewed differences already break the coverage."""


@dataclass(frozen=True)
class Comparison:
    """Our mean over rounds minus that of another method, paired by seed, with a 95 % interval and p-values."""

    rival: str
    difference: float
    low: float
    """Lower end of the 95 % interval; NaN with too few seeds."""
    high: float
    p: float
    """p-value of the two-sided paired t-test; NaN with too few seeds."""
    p_corrected: float
    """p-value after Holm's correction for the number of methods."""
    p_sign_flip: float
    """p-value of the paired sign-flip permutation test, which assumes no distribution; never below 2 / 2^seeds."""
    num_seeds: int

    @property
    def points(self) -> str:
        """The difference in percentage points, as text."""
        return _percent(self.difference, "+.1f")

    @property
    def interval(self) -> str:
        """The interval in percentage points, as text."""
        return interval_text(self.low, self.high, "+.1f")


def compare(ours: Curve, rivals: Sequence[Curve], num_rounds: int | None = None) -> list[Comparison]:
    """Compares our method with each of the others, paired by seed, on the mean over the first common rounds."""
    found: list[tuple[str, np.ndarray]] = []
    for rival in rivals:
        shared = [seed for seed in ours.seeds if seed in rival.seeds]
        if shared:
            mine, other = of_seeds(ours, shared).values, of_seeds(rival, shared).values
            last = min(mine.shape[1], other.shape[1], num_rounds or mine.shape[1])
            found.append((rival.method, (mine[:, :last] - other[:, :last]).mean(axis=1)))
    p_values = [paired_t_p(differences) for _, differences in found]
    return [
        Comparison(
            name,
            float(differences.mean()),
            float(low),
            float(high),
            p,
            p_corrected,
            sign_flip_p(differences),
            len(differences),
        )
        for (name, differences), p, p_corrected in zip(found, p_values, holm(p_values), strict=True)
        for low, high in [mean_interval(differences)]
    ]


def mean_interval(values_BN: np.ndarray) -> np.ndarray:
    """Returns both ends of the 95 % t interval of the mean over the last dimension; NaN with too few seeds."""
    half_B = _half_width(values_BN)
    return values_BN.mean(axis=-1) + np.stack([-half_B, half_B])


def paired_t_p(differences: np.ndarray) -> float:
    """Returns the p-value of the two-sided t-test that the mean difference is 0; NaN with too few seeds."""
    if len(differences) < FEWEST_SEEDS:
        return float("nan")
    mean, error = abs(float(differences.mean())), float(differences.std(ddof=1)) / len(differences) ** 0.5
    if error == 0:
        return float(mean == 0)
    return float(2 * stdtr(len(differences) - 1, -mean / error))


def _half_width(values_BN: np.ndarray) -> np.ndarray:
    """Returns half the width of the 95 % t interval of the mean; NaN with too few seeds."""
    num_seeds = values_BN.shape[-1]
    if num_seeds < FEWEST_SEEDS:
        return np.full(values_BN.shape[:-1], np.nan)
    return np.asarray(stdtrit(num_seeds - 1, 0.975) * values_BN.std(axis=-1, ddof=1) / num_seeds**0.5)


def sign_flip_p(differences: np.ndarray) -> float:
    """Returns the p-value of a sign-flip test: the fraction of sign patterns whose mean is at least as far from 0.

    The test is exact for up to 16 seeds. For more, it uses 100,000 random patterns.
    """
    count = len(differences)
    if count <= 16:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(100_000, count))
    means = np.abs(signs @ differences) / count
    return float((means >= abs(differences.mean()) - 1e-12).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Returns p-values after Holm's correction for multiple tests; NaN values stay NaN and do not count as tests."""
    corrected, largest = [float("nan")] * len(p), 0.0
    order = [int(i) for i in np.argsort(p, kind="stable") if not np.isnan(p[i])]
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p[i]))
        corrected[i] = largest
    return corrected


@dataclass(frozen=True)
class Saving:
    """Fraction of another method's labels saved, averaged over levels of accuracy that it reaches, with an interval.

    A level that we never reach counts as reached with our last label. The actual saving is smaller, so the mean is then
    an upper bound.
    """

    rival: str
    mean: float
    low: float
    """Lower end of the 95 % interval; NaN with too few seeds."""
    high: float
    low_level: float
    high_level: float
    num_missed: int
    """How many of the `NUM_LEVELS` levels we never reach."""
    at_end: float
    """Fraction of labels saved at the other method's final level; -inf if we never reach it."""
    is_bound_at_end: bool = False
    """Whether `at_end` is a lower bound because we already exceed that level after round 1."""

    @property
    def share(self) -> str:
        """The fraction of labels saved, as text."""
        return f"{'at most ' if self.num_missed else ''}{_percent(self.mean)} %"

    @property
    def interval(self) -> str:
        """The interval, as text. For an upper bound, only the upper end is meaningful."""
        if np.isnan(self.low) or not self.num_missed:
            return interval_text(self.low, self.high, ".0f", " %")
        return f"up to {_percent(self.high)} %"

    @property
    def levels(self) -> str:
        """The range of levels, as text."""
        return f"{100 * self.low_level:.1f} to {100 * self.high_level:.1f} %"

    @property
    def missed(self) -> str:
        """The number of levels that we never reach, as text."""
        return f"{self.num_missed} of {NUM_LEVELS}"

    @property
    def end(self) -> str:
        """The fraction of labels saved at the final level, as text."""
        return end_text(self.at_end, self.is_bound_at_end)


def compare_labels(ours: Curve, rivals: Sequence[Curve]) -> list[Saving]:
    """Returns the labels saved compared with each method that exceeds our accuracy after round 1.

    All comparisons start at the same level: the highest accuracy that any of the methods has after round 1. For a
    method that never reaches it, the comparison starts at its own or our first accuracy, whichever is higher.
    """
    found = []
    for rival in rivals:
        others = [other.mean[0] for other in rivals if other is not rival and len(other.labels_spent) > 1]
        common = max(others, default=-np.inf)
        found.append(saving(ours, rival, common if common < rival.mean.max() else -np.inf))
    return [one for one in found if one]


def saving(ours: Curve, rival: Curve, lowest: float = -np.inf) -> Saving | None:
    """Returns the labels saved at levels of accuracy from round 1 up to the other method's highest, on shared seeds.

    Args:
        ours: The curve of our method.
        rival: The curve of the other method.
        lowest: The lowest level to compare; at least (and by default) the higher of both accuracies after round 1.

    Returns:
        The saving, or None if the other method never exceeds the lowest level or shares no seed with ours.
    """
    shared = [s for s in ours.seeds if s in rival.seeds]
    if not shared:
        return None
    ours, rival = of_seeds(ours, shared), of_seeds(rival, shared)
    spent = (ours.labels_spent, rival.labels_spent)
    levels = levels_compared(ours.mean, rival.mean, lowest)
    start = max(ours.mean[0], rival.mean[0], lowest)
    if levels[-1] <= start:
        return None
    low, high = saving_interval(ours.values, rival.values, *spent, lowest)
    return Saving(
        rival.method,
        float(mean_saving(ours.mean, rival.mean, *spent, lowest)),
        float(low),
        float(high),
        float(start),
        float(levels[-1]),
        int((levels > ours.mean.max()).sum()),
        labels_saved(ours, rival),
        is_bound_at_end=bool(rival.mean[-1] < ours.mean[0]),
    )


def levels_compared(ours_BR: np.ndarray, rival_BR: np.ndarray, lowest: float) -> np.ndarray:
    """Returns equally spaced levels of accuracy above the lowest, up to the other method's highest accuracy."""
    start_B = np.maximum(np.maximum(ours_BR[..., 0], rival_BR[..., 0]), lowest)
    range_B = np.maximum(rival_BR.max(axis=-1) - start_B, 0)
    return start_B[..., None] + range_B[..., None] * np.arange(1, NUM_LEVELS + 1) / NUM_LEVELS


def mean_saving(
    ours_BR: np.ndarray, rival_BR: np.ndarray, our_spent_R: np.ndarray, rival_spent_R: np.ndarray, lowest: float
) -> np.ndarray:
    """Returns the fraction of labels saved on mean curves; a level never reached counts as reached with the last label.

    The other method's curve reaches every level that is compared, apart from rounding.
    """
    levels_BL = levels_compared(ours_BR, rival_BR, lowest)
    ours_BL = np.minimum(labels_needed(levels_BL, ours_BR, our_spent_R), our_spent_R[-1])
    rival_BL = np.minimum(labels_needed(levels_BL, rival_BR, rival_spent_R), rival_spent_R[-1])
    return np.asarray((1 - ours_BL / rival_BL).mean(axis=-1))


def saving_interval(
    ours_BNR: np.ndarray, rival_BNR: np.ndarray, our_spent_R: np.ndarray, rival_spent_R: np.ndarray, lowest: float
) -> np.ndarray:
    """Returns both ends of the 95 % interval of the saving over N paired seeds; NaN with too few seeds.

    The logarithm of the labels still needed, 1 - saving, is computed with each seed left out in turn. The interval
    follows from Student's t and the spread of these values (jackknife).
    """
    num_seeds, spent = ours_BNR.shape[-2], (our_spent_R, rival_spent_R)
    if num_seeds < FEWEST_SEEDS:
        return np.full((2, *ours_BNR.shape[:-2]), np.nan)
    needed_B = np.log1p(-mean_saving(ours_BNR.mean(axis=-2), rival_BNR.mean(axis=-2), *spent, lowest))
    needed_BN = np.log1p(-mean_saving(_without_each(ours_BNR), _without_each(rival_BNR), *spent, lowest))
    half_B = _half_width(num_seeds * needed_B[..., None] - (num_seeds - 1) * needed_BN)
    return -np.expm1(needed_B + np.stack([half_B, -half_B]))


def _without_each(values_BNR: np.ndarray) -> np.ndarray:
    """Returns the mean curves with each seed left out in turn."""
    return (values_BNR.sum(axis=-2, keepdims=True) - values_BNR) / (values_BNR.shape[-2] - 1)


def interval_text(low: float, high: float, style: str, unit: str = "") -> str:
    """Returns an interval of fractions as text, in percent or percentage points."""
    if np.isnan(low):
        return "too few seeds"
    return f"{_percent(low, style)} to {_percent(high, style)}{unit}"


def p_text(p: float) -> str:
    """Returns a p-value as text, or a dash if there are too few seeds."""
    return "–" if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def needed_text(labels: float) -> str:
    """Returns a number of labels as text; infinity means that the level was not reached."""
    return "not reached" if np.isinf(labels) else f"{labels:,.0f}"


def end_text(at_end: float, is_bound: bool) -> str:
    """Returns the fraction of labels saved at the other method's final level, as text."""
    return "not reached" if np.isinf(at_end) else f"{'at least ' if is_bound else ''}{_percent(at_end)} %"


def _percent(value: float, style: str = ".0f") -> str:
    """Returns a fraction in percent, without the sign of a rounded zero."""
    text = f"{100 * value:{style}}"
    return text.replace("-", "") if float(text) == 0 else text
