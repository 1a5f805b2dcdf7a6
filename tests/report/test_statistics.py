"""Statistics against closed forms and brute force."""

import itertools

import numpy as np
import pytest

from rarefish.report.curves import Curve
from rarefish.report.statistics import compare, holm, saving, sign_flip_p


def made(values: list[list[float]], method: str = "ours") -> Curve:
    return Curve(method, np.arange(1, len(values[0]) + 1) * 100, np.array(values))


def test_half_as_many_labels_are_half_saved() -> None:
    """The rival is our curve at half the speed: at every level it needs twice the labels."""
    ours = made([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]] * 5)
    rival = made([[0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]] * 5, "rival")
    found = saving(ours, rival)
    assert found is not None and found.mean == pytest.approx(0.5, abs=1e-6)
    assert found.low == found.high == pytest.approx(0.5, abs=1e-6)
    assert (found.low_level, found.high_level) == pytest.approx((0.1, 0.4))
    assert found.at_end == pytest.approx(0.5) and found.end == "50 %"


def test_where_we_never_end_is_said() -> None:
    found = saving(made([[0.1, 0.3]]), made([[0.1, 0.4]], "rival"))
    assert found is not None and found.mean < 0 and found.end == "not reached"


def test_the_interval_widens_with_the_spread_of_seeds() -> None:
    rng = np.random.default_rng(0)
    base = np.linspace(0.2, 0.8, 6)
    widths = []
    for spread in (0.01, 0.08):
        ours = made((base + rng.normal(0, spread, (10, 1))).tolist())
        rival = made((base - 0.1 + rng.normal(0, spread, (10, 1))).tolist(), "rival")
        found = saving(ours, rival)
        assert found is not None and found.low < found.mean < found.high
        widths.append(found.high - found.low)
    assert widths[1] > 2 * widths[0]


def test_few_seeds_have_no_interval() -> None:
    found = saving(made([[0.1, 0.3]] * 4), made([[0.1, 0.2]] * 4, "rival"))
    assert found is not None and found.interval == "too few seeds" and found.mean > 0


def test_no_common_level() -> None:
    assert saving(made([[0.5, 0.6]]), made([[0.1, 0.2]], "rival")) is None


@pytest.mark.parametrize("count", [1, 4, 7])
def test_sign_flips_equal_all_patterns(count: int) -> None:
    x = np.random.default_rng(count).normal(0.5, 1, count)
    patterns = [np.mean(np.array(s) * x) for s in itertools.product([1, -1], repeat=count)]
    assert sign_flip_p(x) == pytest.approx(np.mean([abs(m) >= abs(x.mean()) - 1e-12 for m in patterns]))


def test_ten_seeds_all_better_is_the_smallest_p_there_is() -> None:
    assert sign_flip_p(np.arange(1, 11) / 10) == pytest.approx(2 / 1024)
    assert sign_flip_p(np.full(20, 0.3)) < 1e-3


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_comparisons_are_paired_and_over_the_first_rounds() -> None:
    ours = made([[0.5, 0.9], [0.6, 0.9], [0.7, 0.9]])
    rival = made([[0.4, 0.95], [0.5, 0.95], [0.6, 0.95]], "rival")
    (first,) = compare(ours, [rival], num_rounds=1)
    assert first.difference == pytest.approx(0.1) and first.p == pytest.approx(0.25) and first.num_seeds == 3
    assert compare(ours, [rival])[0].difference == pytest.approx(0.025)


def test_methods_are_compared_on_the_seeds_and_rounds_that_both_have() -> None:
    values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]])
    ours = Curve("ours", np.array([10, 20, 30]), values, (0, 1, 2))
    rival = Curve("rival", np.array([10, 20]), values[[0, 2], :2], (0, 2))
    (found,) = compare(ours, [rival])
    assert found.difference == pytest.approx(0) and found.num_seeds == 2
    assert compare(ours, [Curve("elsewhere", np.array([10]), values[:1, :1], (7,))]) == []
