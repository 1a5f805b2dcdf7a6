"""DIRECT: thresholds and intervals against loops over the ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rarefish.acquisitions.direct import accuracies, outward, shrink, uncertain_interval


@given(state=st.lists(st.sampled_from([0, 0, 1, -1]), min_size=1, max_size=20))
def test_thresholds_and_intervals_equal_loops(state: list[int]) -> None:
    slow = [sum(state[:s]) - sum(state[s:]) for s in range(len(state) + 1)]
    assert accuracies(np.array(state)).tolist() == slow
    low, high = 0, len(state) - 1
    for rank, s in enumerate(state):
        if s == -1:
            break
        low = rank if s == 1 else low
    for rank in range(len(state) - 1, -1, -1):
        if state[rank] == 1:
            break
        high = rank if state[rank] == -1 else high
    assert uncertain_interval(np.array(state)) == (low, high)
    best, order = slow.index(max(slow)), []
    for step in range(len(state)):
        order += [rank for rank in (best - 1 - step, best + step) if 0 <= rank < len(state)]
    assert outward(np.array(state), 5).tolist() == [rank for rank in order if state[rank] == 0][:5]


def test_the_interval_shrinks_around_the_threshold() -> None:
    state, rng = np.zeros(1000, dtype=int), np.random.default_rng(0)
    low, high = 0, 999
    for left in (4, 3, 2):
        free = low + np.flatnonzero(state[low : high + 1] == 0)
        ranks = rng.choice(free, 20, replace=False)
        state[ranks] = np.where(ranks < 300, 1, -1)
        low, high = shrink(state, low, high, left, rng)
    assert low <= 300 <= high and high - low < 60
