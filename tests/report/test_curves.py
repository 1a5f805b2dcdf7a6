"""Labels needed and saved, against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rarefish.report.curves import Curve, complete, curve, labels_saved, labels_to_reach, methods_of
from tests.active_learning.test_records import record


def made(*values: float, method: str = "ours") -> Curve:
    return Curve(method, np.arange(1, len(values) + 1) * 100, np.array([values]))


@pytest.mark.parametrize(
    ("level", "labels"),
    [(0.2, 100), (0.1, 100), (0.3, 150), (0.4, 200), (0.8, 300), (0.81, float("inf"))],
)
def test_labels_to_reach(level: float, labels: float) -> None:
    assert labels_to_reach(level, made(0.2, 0.4, 0.8)) == pytest.approx(labels)


def test_a_dip_does_not_undo_what_was_reached() -> None:
    assert labels_to_reach(0.5, made(0.2, 0.6, 0.3)) == pytest.approx(175)


def test_labels_saved() -> None:
    assert labels_saved(made(0.2, 0.4, 0.8), made(0.1, 0.2, 0.4)) == pytest.approx(1 / 3)
    assert labels_saved(made(0.2, 0.4, 0.8), made(0.1, 0.2, 0.3, 0.4)) == pytest.approx(1 / 2)
    assert labels_saved(made(0.1, 0.1), made(0.1, 0.2)) == -np.inf


def test_mean_and_spread_are_over_seeds() -> None:
    records = [record("a", s, n, v) for s, row in enumerate([(0.1, 0.3), (0.3, 0.7)]) for n, v in enumerate(row, 1)]
    drawn = curve([*records[::-1], record("b")], "a", "accuracy")
    assert drawn.mean.tolist() == pytest.approx([0.2, 0.5]) and drawn.std.tolist() == pytest.approx(
        [0.2 / 2**0.5, 0.4 / 2**0.5]
    )
    assert drawn.labels_spent.tolist() == [40, 80]
    assert methods_of([*records, record("b")]) == ["a", "b"]


def test_rounds_that_some_seed_has_not_finished_are_left_out() -> None:
    own = [record("a", seed, n) for seed, last in enumerate((3, 2, 4)) for n in range(1, last + 1)]
    other = [record("b", 0, 1), record("b", 1, 1), record("b", 1, 2)]
    kept = [(r.method, r.seed, r.round) for r in complete([*own, *other])]
    assert kept == [*(("a", seed, n) for seed in range(3) for n in (1, 2)), ("b", 0, 1), ("b", 1, 1)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(-0.1, 1.1))
def test_labels_to_reach_equals_a_walk_along_the_curve(values: list[float], level: float) -> None:
    best, expected = values[0], 100.0 if values[0] >= level else float("inf")
    for number, value in enumerate(values[1:], 1):
        if expected == float("inf") and value >= level:
            expected = 100 * number + 100 * (level - best) / (value - best)
        best = max(best, value)
    assert labels_to_reach(level, made(*values)) == pytest.approx(expected, rel=1e-6)
