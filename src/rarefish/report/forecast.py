"""Compare the gain expected from the next labels after each round with the actual gain on the test set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rarefish.active_learning.records import Record
from rarefish.active_learning.stopping import FEWEST_ROUNDS, STEP, Outlook, expect_gain, failing_classes
from rarefish.report.curves import Curve

EXPECTED, CAME = "expected from the validation set", "observed on the test set"


@dataclass(frozen=True)
class Forecast:
    """The forecast of one method after the last round, averaged over seeds, and the errors of earlier forecasts."""

    method: str
    outlook: Outlook
    curves: tuple[Curve, ...]
    """(expected, actual) gain after each round except the last, which has no next round to compare with."""

    @property
    def error(self) -> float | None:
        """The mean absolute error of the forecasts over rounds and seeds."""
        if not self.curves:
            return None
        expected, came = self.curves
        return float(np.abs(expected.values - came.values).mean())


def forecast(records: Sequence[Record], method: str) -> Forecast | None:
    """Returns the forecast of a method, or None if a run has too few rounds or no validation scores."""
    own = sorted((r for r in records if r.method == method), key=lambda r: (r.seed, r.round))
    runs = [[r for r in own if r.seed == seed] for seed in sorted({r.seed for r in own})]
    if not all(r.validation_recall for r in own) or min(map(len, runs)) < FEWEST_ROUNDS:
        return None
    last = [outlook for run in runs if (outlook := after(run))]
    if not last:
        return None
    mean = Outlook(*(float(np.mean([getattr(o, name) for o in last])) for name in ("gain", "low", "high")))
    places = range(FEWEST_ROUNDS, min(map(len, runs)))
    spent = np.array([runs[0][place - 1].labels_spent for place in places])
    expected = [[o.gain if (o := after(run[:place])) else 0.0 for place in places] for run in runs]
    came = [[gained(run, place) for place in places] for run in runs]
    curves = (Curve(EXPECTED, spent, np.array(expected)), Curve(CAME, spent, np.array(came))) if len(spent) else ()
    return Forecast(method, mean, curves)


def after(run: Sequence[Record]) -> Outlook | None:
    """Returns the forecast after the given rounds of one seed."""
    failing = failing_classes(run[0].validation_recall)
    # Stratified by class, as our validation sets are: a class without images has a recall of NaN and never fails.
    num_images = run[0].validation_size * len(failing) // len(run[0].validation_recall)
    return expect_gain(
        [r.labels_spent for r in run], [float(np.mean(np.array(r.validation_recall)[failing])) for r in run], num_images
    )


def gained(run: Sequence[Record], place: int) -> float:
    """Returns the gain in test recall of the failing classes, per hundred labels, in the round after `place` rounds."""
    failing = failing_classes(run[0].validation_recall)
    before, then = (float(np.mean(np.array(r.recall)[failing])) for r in (run[place - 1], run[place]))
    return (then - before) * STEP / max(1, run[place].labels_spent - run[place - 1].labels_spent)
