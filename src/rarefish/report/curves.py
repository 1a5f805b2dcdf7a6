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
    """Seeds of the rows; 0, 1, 2 … if not given."""

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
    """Returns the curve of a metric (`accuracy`, `rare_recall` …) of a method, with seeds in order."""
    own = sorted((r for r in records if r.method == method), key=lambda r: (r.seed, r.round))
    seeds = sorted({r.seed for r in own})
    values = np.array([[getattr(r, figure) for r in own if r.seed == seed] for seed in seeds])
    return Curve(method, np.array([r.labels_spent for r in own if r.seed == seeds[0]]), values, tuple(seeds))


def of_seeds(drawn: Curve, seeds: Sequence[int]) -> Curve:
    """Returns the curve of some of the seeds, in the given order."""
    rows = [drawn.seeds.index(seed) for seed in seeds]
    return Curve(drawn.method, drawn.labels_spent, drawn.values[rows], tuple(seeds))


SETTINGS = ("imbalance", "validation_size", "start", "restart")


def name_apart(records: Sequence[Record]) -> list[Record]:
    """Returns the records with the settings that vary among them added to the method's name, so that every curve is a
    method; the records of a method are in the order of its settings."""
    varied = [name for name in SETTINGS if len({getattr(record, name) for record in records}) > 1]
    if not varied:
        return list(records)

    def suffix(record: Record) -> str:
        shown = {
            "imbalance": f"{record.imbalance}×",
            "validation_size": f"M={record.validation_size}",
            "start": record.start,
            "restart": record.restart,
        }
        return ", ".join(shown[name] for name in varied)

    place = {method: number for number, method in enumerate(methods_of(records))}
    in_order = sorted(records, key=lambda r: (place[r.method], r.imbalance, r.validation_size))
    return [replace(record, method=f"{record.method}, {suffix(record)}") for record in in_order]


def complete(records: Sequence[Record]) -> list[Record]:
    """Returns the records of those rounds that all seeds of a method have finished."""
    kept = []
    for method in methods_of(records):
        own = [record for record in records if record.method == method]
        last = min(max(r.round for r in own if r.seed == seed) for seed in {r.seed for r in own})
        kept += [record for record in own if record.round <= last]
    return kept


def methods_of(records: Sequence[Record]) -> list[str]:
    """Returns the curve of every method, in the order of first appearance."""
    return list(dict.fromkeys(record.method for record in records))


def labels_to_reach(level: float, reached: Curve) -> float:
    """Returns the labels that the mean curve needs to reach a level, interpolated linearly; inf if it never does.

    Before the first round nothing is known: a level passed there counts as all of the first round's labels.
    """
    return float(labels_to_reach_each(np.array([level]), reached)[0])


def labels_to_reach_each(levels: np.ndarray, reached: Curve) -> np.ndarray:
    """Returns the labels needed for each of many levels."""
    best, spent = np.maximum.accumulate(reached.mean), reached.labels_spent.astype(float)
    after = np.searchsorted(best, levels)
    high = np.clip(after, 1, len(best) - 1) if len(best) > 1 else np.zeros_like(after)
    low = np.maximum(high - 1, 0)
    step = np.where(best[high] > best[low], best[high] - best[low], 1.0)
    between = spent[low] + (levels - best[low]) / step * (spent[high] - spent[low])
    return np.where(after == 0, spent[0], np.where(after == len(best), np.inf, between))


def labels_saved(ours: Curve, rival: Curve) -> float:
    """Returns the fraction of the rival's labels saved at its final level; minus infinity if we never reach it."""
    return 1 - labels_to_reach(float(rival.mean[-1]), ours) / float(rival.labels_spent[-1])
