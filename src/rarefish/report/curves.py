"""Learning curves: mean and spread over seeds, labels needed, labels saved."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rarefish.active_learning.records import Record


@dataclass(frozen=True)
class Curve:
    """A metric of one method after each round, for all seeds."""

    method: str
    labels_spent: np.ndarray
    values: np.ndarray
    """One row per seed, one column per round."""
    seeds: tuple[int, ...] = ()
    """Seeds of the rows; by default 0, 1, 2 …"""

    def __post_init__(self) -> None:
        if not self.seeds:
            object.__setattr__(self, "seeds", tuple(range(len(self.values))))

    @property
    def mean(self) -> np.ndarray:
        return self.values.mean(axis=0)

    @property
    def std(self) -> np.ndarray:
        """The sample standard deviation over seeds (divided by n - 1); 0 for a single seed."""
        return self.values.std(axis=0, ddof=1 if len(self.values) > 1 else 0)


def curve(records: Sequence[Record], method: str, figure: str) -> Curve:
    """Returns a method's curve of a metric (`accuracy`, `rare_recall` …), with the seeds in order."""
    own = sorted((r for r in records if r.method == method), key=lambda r: (r.seed, r.round))
    seeds = sorted({r.seed for r in own})
    values = np.array([[getattr(r, figure) for r in own if r.seed == seed] for seed in seeds])
    return Curve(method, np.array([r.labels_spent for r in own if r.seed == seeds[0]]), values, tuple(seeds))


def split_baselines(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Returns the records of rounds, and those of baselines, which have the round 0."""
    return [r for r in records if r.round], [r for r in records if not r.round]


def constant(baselines: Sequence[Record], method: str, figure: str, labels_spent: np.ndarray) -> Curve:
    """Returns the curve of a baseline, which has the same value for any number of labels."""
    single = curve(baselines, method, figure)
    return Curve(method, labels_spent, np.repeat(single.values, len(labels_spent), axis=1), single.seeds)


def of_seeds(drawn: Curve, seeds: Sequence[int]) -> Curve:
    """Returns the curve restricted to the given seeds, in the given order."""
    rows = [drawn.seeds.index(seed) for seed in seeds]
    return Curve(drawn.method, drawn.labels_spent, drawn.values[rows], tuple(seeds))


SETTINGS = ("imbalance", "validation_size", "start", "restart")


def by_settings(records: Sequence[Record]) -> list[Record]:
    """Returns the records of each method in the order of its settings, with methods in the order of appearance."""
    place = {method: number for number, method in enumerate(methods_of(records))}
    return sorted(records, key=lambda r: (place[r.method], r.imbalance, r.validation_size))


def name_apart(records: Sequence[Record]) -> list[Record]:
    """Returns the records `by_settings`, with the settings that vary among them added to the method's name.

    Each combination of settings then has a curve of its own.
    """
    varied = [name for name in SETTINGS if len({getattr(record, name) for record in records}) > 1]
    if not varied:
        return by_settings(records)

    def suffix(record: Record) -> str:
        shown = {
            "imbalance": f"{record.imbalance}×",
            "validation_size": f"M={record.validation_size}",
            "start": record.start,
            "restart": record.restart,
        }
        return ", ".join(shown[name] for name in varied)

    return [replace(record, method=f"{record.method}, {suffix(record)}") for record in by_settings(records)]


def complete(records: Sequence[Record]) -> list[Record]:
    """Returns the records of the rounds that all seeds of a method have finished."""
    kept = []
    for method in methods_of(records):
        own = [record for record in records if record.method == method]
        last = min(max(r.round for r in own if r.seed == seed) for seed in {r.seed for r in own})
        kept += [record for record in own if record.round <= last]
    return kept


def methods_of(records: Sequence[Record]) -> list[str]:
    """Returns the names of the methods, in the order of first appearance."""
    return list(dict.fromkeys(record.method for record in records))


def labels_to_reach(level: float, reached: Curve) -> float:
    """Returns the labels that the mean curve needs to reach a level, interpolated linearly; inf if it never does.

    Nothing is known before the first round: a level reached there counts as needing all labels of the first round.
    """
    return float(labels_to_reach_each(np.array([level]), reached)[0])


def labels_to_reach_each(levels: np.ndarray, reached: Curve) -> np.ndarray:
    """Returns the labels that the mean curve needs for each of several levels."""
    return labels_needed(levels, reached.mean, reached.labels_spent)


def labels_needed(levels_BL: np.ndarray, accuracy_BR: np.ndarray, spent_R: np.ndarray) -> np.ndarray:
    """Returns the labels that each of B curves of R rounds needs for each of its L levels; inf if it never reaches one.

    B stands for any number of leading dimensions, including none.
    """
    best_BR, spent_R = np.maximum.accumulate(accuracy_BR, axis=-1), spent_R.astype(float)
    num_rounds = len(spent_R)
    after_BL = (best_BR[..., None, :] < levels_BL[..., :, None]).sum(axis=-1)
    high_BL = np.clip(after_BL, min(1, num_rounds - 1), num_rounds - 1)
    low_BL = np.maximum(high_BL - 1, 0)
    above_BL, below_BL = (np.take_along_axis(best_BR, place_BL, axis=-1) for place_BL in (high_BL, low_BL))
    step_BL = np.where(above_BL > below_BL, above_BL - below_BL, 1.0)
    between_BL = spent_R[low_BL] + (levels_BL - below_BL) / step_BL * (spent_R[high_BL] - spent_R[low_BL])
    return np.where(after_BL == 0, spent_R[0], np.where(after_BL == num_rounds, np.inf, between_BL))


def labels_saved(ours: Curve, rival: Curve) -> float:
    """Returns the fraction of the other method's labels saved at its final level; -inf if we never reach that level."""
    return 1 - labels_to_reach(float(rival.mean[-1]), ours) / float(rival.labels_spent[-1])
