"""Statistics against closed forms, brute force, SciPy, and simulated experiments whose truth is known."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from rarefish.report.curves import Curve, labels_to_reach
from rarefish.report.statistics import (
    NUM_LEVELS,
    compare,
    compare_labels,
    end_text,
    holm,
    mean_interval,
    mean_saving,
    p_text,
    saving,
    saving_interval,
    sign_flip_p,
)


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
    assert first.difference == pytest.approx(0.1) and first.p_sign_flip == pytest.approx(0.25) and first.num_seeds == 3
    assert compare(ours, [rival])[0].difference == pytest.approx(0.025)


def test_methods_are_compared_on_the_seeds_and_rounds_that_both_have() -> None:
    values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]])
    ours = Curve("ours", np.array([10, 20, 30]), values, (0, 1, 2))
    rival = Curve("rival", np.array([10, 20]), values[[0, 2], :2], (0, 2))
    (found,) = compare(ours, [rival])
    assert found.difference == pytest.approx(0) and found.num_seeds == 2
    assert compare(ours, [Curve("elsewhere", np.array([10]), values[:1, :1], (7,))]) == []


def test_the_lead_is_a_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    ours = made((rng.normal(0.6, 0.05, (8, 1)) + rng.normal(0, 0.02, (8, 3))).tolist())
    rival = made((ours.values - 0.02 + rng.normal(0, 0.03, (8, 3))).tolist(), "rival")
    (found,) = compare(ours, [rival])
    known = stats.ttest_rel(ours.values.mean(axis=1), rival.values.mean(axis=1))
    assert found.p == pytest.approx(known.pvalue)
    interval = known.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.interval == f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
    assert found.p_sign_flip != pytest.approx(found.p)


def test_without_spread_the_p_value_is_0_or_1() -> None:
    same, ahead = made([[0.5, 0.75]] * 5), made([[0.25, 0.5]] * 5)
    found = compare(same, [same, ahead])
    assert [one.p for one in found] == [1.0, 0.0] and [one.points for one in found] == ["+0.0", "+25.0"]
    assert [p_text(p) for p in (0.0004, 0.01)] == ["< 0.001", "0.010"]


def test_few_seeds_have_neither_interval_nor_p_value() -> None:
    rng = np.random.default_rng(0)
    some, other, enough = (made(rng.random((n, 2)).tolist()) for n in (4, 4, 5))
    (found,) = compare(some, [other])
    assert found.interval == "too few seeds" and p_text(found.p) == p_text(found.p_corrected) == "–"
    assert 0 < found.p_sign_flip <= 1
    assert np.isfinite(compare(enough, [made(rng.random((5, 2)).tolist())])[0].low)


def test_holm_leaves_out_what_has_no_p_value() -> None:
    assert holm([0.01, float("nan"), 0.03]) == pytest.approx([0.02, float("nan"), 0.03], nan_ok=True)


def test_a_level_never_reached_counts_with_all_our_labels() -> None:
    """Ours stalls at 0.4 of the rival's 0.2 to 0.6: it misses half of the levels and needs 300 labels for each."""
    ours, rival = made([[0.2, 0.3, 0.4, 0.4]] * 5), made([[0.15, 0.3, 0.45, 0.6]] * 5, "rival")
    found = saving(ours, rival)
    assert found is not None and found.num_missed == NUM_LEVELS // 2 and found.missed == "25 of 50"
    levels = np.linspace(0.2, 0.6, NUM_LEVELS + 1)[1:]
    needed = [min(labels_to_reach(level, ours), 400) / labels_to_reach(level, rival) for level in levels]
    assert found.mean == pytest.approx(1 - np.mean(needed))
    assert found.share == f"at most {100 * found.mean:.0f} %" and found.interval == f"up to {100 * found.high:.0f} %"
    assert found.end == "not reached"
    whole = saving(rival, ours)
    assert whole is not None and whole.num_missed == 0 and not whole.share.startswith("at most")


def test_stalling_does_not_flatter() -> None:
    """The later ours stalls, the more it saves; without the levels that it misses, stalling early looked better."""
    rival = made([[0.1, 0.3, 0.5, 0.6, 0.65, 0.7]] * 5, "rival")
    tops = [0.5, 0.55, 0.6, 0.65, 0.7]
    found = [saving(made([np.minimum([0.1, 0.5, 0.55, 0.6, 0.65, 0.7], top).tolist()] * 5), rival) for top in tops]
    shares = [one.mean for one in found if one]
    assert len(shares) == len(tops) and shares == sorted(shares) and shares[0] < shares[-1] - 0.01


def test_all_rivals_are_compared_from_the_same_level() -> None:
    ours = made([[0.3, 0.6, 0.8]])
    rivals = [made([row], name) for name, row in {"a": [0.2, 0.5, 0.7], "b": [0.4, 0.5, 0.6]}.items()]
    late, single = made([[0.1, 0.2, 0.35]], "late"), made([[0.65]], "single")
    found = {one.rival: one for one in compare_labels(ours, [*rivals, late, made([[0.1, 0.2, 0.25]], "never"), single])}
    assert {name: one.low_level for name, one in found.items()} == {"a": 0.4, "b": 0.4, "late": 0.3}
    assert found["a"].levels == "40.0 to 70.0 %" and found["late"].end == "61 %"  # 0.35 after 117 of 300


def test_a_level_passed_in_the_first_round_bounds_the_saving_at_the_end() -> None:
    assert end_text(0.9, True) == "at least 90 %" and end_text(0.9, False) == "90 %"
    assert end_text(-np.inf, False) == "not reached" and end_text(-0.001, False) == "0 %"


@dataclass(frozen=True)
class Simulation:
    """True mean curves of two methods and the standard deviations over seeds, in percent, after each round."""

    ours: tuple[float, ...]
    rival: tuple[float, ...]
    our_std: tuple[float, ...]
    rival_std: tuple[float, ...]
    skew: float = 0.0
    """Shape of the log-normal noise; 0 is normal. Seeds that fail are further from the mean than those that excel."""

    def draw(self, num_runs: int, num_seeds: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns accuracies by run, seed and round; noise is correlated over rounds and between the two methods."""
        rng = np.random.default_rng(num_seeds)
        of_seed, ours, rival = (self._noise(rng, num_runs, num_seeds) for _ in range(3))
        shared = 0.3
        drawn = [
            (np.array(mean) + np.array(std) * self._skewed(shared**0.5 * of_seed + (1 - shared) ** 0.5 * own)) / 100
            for mean, std, own in ((self.ours, self.our_std, ours), (self.rival, self.rival_std, rival))
        ]
        return drawn[0], drawn[1]

    def _noise(self, rng: np.random.Generator, num_runs: int, num_seeds: int) -> np.ndarray:
        noise = rng.normal(size=(num_runs, num_seeds, len(self.ours)))
        for number in range(1, len(self.ours)):
            noise[..., number] = 0.7 * noise[..., number - 1] + (1 - 0.7**2) ** 0.5 * noise[..., number]
        return noise

    def _skewed(self, noise: np.ndarray) -> np.ndarray:
        if not self.skew:
            return noise
        square = np.exp(self.skew**2)
        return -(np.exp(self.skew * noise) - square**0.5) / (square * (square - 1)) ** 0.5


SIMULATIONS = {
    "far ahead, then level": Simulation(
        (85.9, 91.5, 92.8, 93.2, 93.3, 93.3, 93.1, 93.0, 92.8, 92.9),
        (51.9, 62.7, 75.6, 84.0, 87.6, 89.4, 90.5, 91.2, 91.6, 92.2),
        (2.4, 1.4, 0.9, 0.6, 0.7, 0.6, 0.7, 0.8, 0.6, 0.6),
        (3.4, 6.7, 5.6, 2.0, 2.2, 1.4, 1.5, 1.2, 1.0, 1.0),
    ),
    "the rival hardly rises": Simulation(
        (51.7, 63.0, 66.4, 68.6, 69.5, 70.6, 71.2, 71.5, 72.2, 72.5),
        (47.8, 51.9, 53.4, 54.9, 55.8, 56.3, 56.8, 56.9, 58.1, 58.3),
        (2.2, 1.6, 1.0, 1.1, 0.7, 0.9, 1.2, 1.0, 0.6, 0.6),
        (1.5, 0.9, 0.9, 0.8, 1.4, 1.2, 0.9, 0.6, 1.1, 1.4),
    ),
    "a small lead, skewed": Simulation(
        (69.0, 74.7, 76.7, 77.3, 78.0),
        (66.2, 73.3, 75.6, 76.1, 76.8),
        (3.0, 1.1, 0.8, 0.5, 0.6),
        (3.8, 1.5, 0.7, 0.5, 0.5),
        skew=0.4,
    ),
    "ours stalls": Simulation(
        (86.0, 90.0, 90.5, 90.6, 90.6, 90.6, 90.6, 90.6, 90.6, 90.6),
        (51.9, 62.7, 75.6, 84.0, 87.6, 89.4, 90.5, 91.2, 92.0, 92.5),
        (2.4, 1.4, 0.9, 0.6, 0.7, 0.6, 0.7, 0.8, 0.6, 0.6),
        (3.4, 6.7, 5.6, 2.0, 2.2, 1.4, 1.5, 1.2, 1.0, 1.0),
    ),
    "no difference": Simulation(
        (47.8, 52.3, 55.2, 57.1, 58.8, 61.4, 62.5, 65.0, 66.5, 68.9),
        (47.8, 52.3, 55.2, 57.1, 58.8, 61.4, 62.5, 65.0, 66.5, 68.9),
        (1.5, 0.6, 0.9, 0.9, 0.8, 1.0, 1.3, 1.4, 1.8, 0.9),
        (1.5, 0.6, 0.9, 0.9, 0.8, 1.0, 1.3, 1.4, 1.8, 0.9),
    ),
}
"""After the curves on the results pages: MNIST and SVHN at 100×, Fashion-MNIST, and two worst cases."""


@pytest.mark.parametrize("num_seeds", [5, 10])
@pytest.mark.parametrize("name", SIMULATIONS)
def test_intervals_contain_the_truth_as_often_as_they_say(name: str, num_seeds: int) -> None:
    """At least 93 % of the 95 % intervals of 2,500 simulated experiments contain the truth, and not nearly all."""
    made_up = SIMULATIONS[name]
    ours, rival = made_up.draw(2500, num_seeds)
    spent = 125 * np.arange(1, ours.shape[-1] + 1)
    truth = np.array(made_up.ours) / 100, np.array(made_up.rival) / 100
    saved = mean_saving(*truth, spent, spent, -np.inf)
    intervals = (
        ((truth[0] - truth[1]).mean(), mean_interval((ours - rival).mean(axis=-1))),
        (saved, saving_interval(ours, rival, spent, spent, -np.inf)),
    )
    for true, (low, high) in intervals:
        assert 0.93 <= ((low <= true) & (true <= high)).mean() < 0.975


def test_the_interval_of_one_experiment_is_that_of_the_simulation() -> None:
    ours, rival = SIMULATIONS["a small lead, skewed"].draw(3, 5)
    spent = 100 * np.arange(1, 6)
    found = [saving(made(a.tolist()), made(b.tolist(), "rival")) for a, b in zip(ours, rival, strict=True)]
    low, high = saving_interval(ours, rival, spent, spent, -np.inf)
    assert [one.low for one in found if one] == pytest.approx(low) and len(found) == 3
    assert [one.high for one in found if one] == pytest.approx(high)
    ahead, behind = made(ours[0].tolist(), "ahead"), made((rival[0] - 0.1).tolist())
    assert compare_labels(behind, [ahead]) == [saving(behind, ahead)]  # its own first level varies over the seeds
