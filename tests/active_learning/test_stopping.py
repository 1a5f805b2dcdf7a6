"""The expected gain against curves with a known rise, and its bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.active_learning.stopping import expect_gain, failing_classes


@pytest.mark.parametrize(("level", "fall", "scale"), [(0.9, 0.6, 200), (0.8, 0.3, 500), (0.95, 0.5, 100)])
def test_the_rise_of_a_known_curve_is_found(level: float, fall: float, scale: float) -> None:
    spent = np.arange(125, 1000, 125)
    recall = level - fall * np.exp(-spent / scale)
    outlook = expect_gain(spent.tolist(), recall.tolist(), num_images=100_000)
    assert outlook is not None
    true = fall * (np.exp(-spent[-1] / scale) - np.exp(-(spent[-1] + 100) / scale))
    assert outlook.gain == pytest.approx(true, abs=0.004)
    assert outlook.low <= outlook.gain + 1e-9 and outlook.gain <= outlook.high + 1e-9


def test_the_interval_contains_the_truth_and_shrinks_with_more_images() -> None:
    spent = np.arange(125, 1000, 125)
    honest = 0.9 - 0.6 * np.exp(-spent / 300)
    true = 0.6 * (np.exp(-spent[-1] / 300) - np.exp(-(spent[-1] + 100) / 300))
    rng, widths = np.random.default_rng(1), {}
    for count in (200, 5000):
        seen = [expect_gain(spent.tolist(), list(rng.binomial(count, honest) / count), count) for _ in range(40)]
        found = [outlook for outlook in seen if outlook]
        assert np.mean([o.low - 1e-9 <= true <= o.high + 1e-9 for o in found]) > 0.6
        widths[count] = np.mean([o.high - o.low for o in found])
    assert widths[5000] < widths[200] / 2


@given(recall=st.lists(st.floats(0, 1), min_size=3, max_size=10), count=st.integers(1, 1000))
@settings(max_examples=60, deadline=None)
def test_the_gain_is_never_negative_and_never_exceeds_full_recall(recall: list[float], count: int) -> None:
    outlook = expect_gain(list(range(100, 100 * len(recall) + 100, 100)), recall, count)
    assert outlook is not None
    assert 0 <= outlook.gain <= 1 - recall[-1] + 1e-9 and 0 <= outlook.low <= outlook.high <= 1


def test_no_estimate_before_the_third_round_or_without_images() -> None:
    assert expect_gain([100, 200], [0.5, 0.6], 50) is None
    assert expect_gain([100, 200, 300], [0.5, 0.6, 0.7], 0) is None


def test_a_flat_curve_has_no_gain_and_the_sentence_says_so() -> None:
    outlook = expect_gain([100, 200, 300, 400], [0.8, 0.8, 0.8, 0.8], 10**6)
    assert outlook is not None and outlook.gain == pytest.approx(0, abs=1e-3)
    assert outlook.sentence.startswith("The next 100 labels should add 0.0 points (0.0 to ")


def test_failing_classes_are_those_below_the_mean() -> None:
    assert failing_classes([0.9, 0.2, 0.95, float("nan"), 0.1]) == [1, 4]
