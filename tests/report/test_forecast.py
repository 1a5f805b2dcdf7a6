"""Forecasts against records whose curves are known."""

import numpy as np
import pytest

from rarefish.active_learning.records import Record
from rarefish.report.forecast import after, forecast, gained


def records(num_rounds: int, seeds: int = 2, with_validation: bool = True) -> list[Record]:
    """Class 0 is always at 95 %; class 1 rises as 0.9 - 0.6 exp(-n / 300), alike on both sets."""
    made = []
    for seed in range(seeds):
        for number in range(1, num_rounds + 1):
            recall = (0.95, 0.9 - 0.6 * float(np.exp(-100 * number / 300)))
            made.append(
                Record(
                    method="ours",
                    seed=seed,
                    round=number,
                    labels_spent=100 * number,
                    accuracy=0.5,
                    rare_recall=0.5,
                    recall=recall,
                    new_labels=(),
                    select_s=0.0,
                    train_s=0.0,
                    validation_size=20_000,
                    validation_recall=recall if with_validation else (),
                )
            )
    return made


def test_a_smooth_curve_is_foretold() -> None:
    found = forecast(records(8), "ours")
    assert found is not None and found.error is not None and found.error < 0.01
    expected, came = found.curves
    assert expected.labels_spent.tolist() == [300, 400, 500, 600, 700]
    run = [r for r in records(8) if r.seed == 0]
    assert came.values[0].tolist() == pytest.approx([run[k].recall[1] - run[k - 1].recall[1] for k in range(3, 8)])
    assert found.outlook.gain == pytest.approx(gained([r for r in records(9) if r.seed == 0], 8), abs=0.01)
    last = after(run)
    assert last is not None and found.outlook.low == pytest.approx(last.low)


def test_no_forecast_without_rounds_or_validation() -> None:
    assert forecast(records(2), "ours") is None
    assert forecast(records(5, with_validation=False), "ours") is None
    short = forecast(records(3), "ours")
    assert short is not None and short.curves == () and short.error is None
