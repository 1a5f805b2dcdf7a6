"""What the next labels were expected to bring after each round, and what they brought on the test set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rarefish.active_learning.records import Record
from rarefish.active_learning.stopping import FEWEST_ROUNDS, STEP, Outlook, expect_gain, failing_classes
from rarefish.report.curves import Curve

EXPECTED, CAME = "expected, from the validation set", "come true, on the test set"


@dataclass(frozen=True)
class Forecast:
    """Of one method: the outlook after the last round, mean over seeds, and how far off earlier ones were."""

    method: str
    outlook: Outlook
    curves: tuple[Curve, ...]
    """Expected and come true after each round but the last, where there was a next one to compare with."""

    @property
    def error(self) -> float | None:
        """Mean distance of what was expected from what came, over rounds and seeds."""
        if not self.curves:
            return None
        expected, came = self.curves
        return float(np.abs(expected.values - came.values).mean())


def forecast(records: Sequence[Record], method: str) -> Forecast | None:
    """None where a run has too few rounds, or did not look at its validation set."""
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
    """What was to be expected after these rounds of one seed."""
    failing = failing_classes(run[0].validation_recall)
    # Stratified by class, as our validation sets are: a class that is not there has a recall of NaN and never fails.
    num_images = run[0].validation_size * len(failing) // len(run[0].validation_recall)
    return expect_gain(
        [r.labels_spent for r in run], [float(np.mean(np.array(r.validation_recall)[failing])) for r in run], num_images
    )


def gained(run: Sequence[Record], place: int) -> float:
    """What a hundred labels of the round after `place` rounds brought to the test recall of the failing classes."""
    failing = failing_classes(run[0].validation_recall)
    before, then = (float(np.mean(np.array(r.recall)[failing])) for r in (run[place - 1], run[place]))
    return (then - before) * STEP / max(1, run[place].labels_spent - run[place - 1].labels_spent)
