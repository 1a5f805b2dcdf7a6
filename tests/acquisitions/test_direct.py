"""DIRECT: thresholds and intervals against loops over the ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rarefish.acquisitions.direct import accuracies, choose_direct, outward, shrink, uncertain_interval
from tests.acquisitions.situations import POOL, seeded, situation
from tests.acquisitions.test_galaxy import margin


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


@pytest.mark.parametrize("parallel", [1, 2, 20])
def test_direct_equals_a_loop_over_its_answers(parallel: int) -> None:
    """Two of the earlier labels are of one class, which is searched first."""
    truth = POOL.tensors[1].tolist()
    of_class = {c: [i for i in range(30) if truth[i] == c] for c in (1, 2)}
    labeled = (*of_class[2][:2], of_class[1][0])
    here = replace(situation(labeled), labels=tuple(truth[i] for i in labeled))
    indices = [*here.labeled, *here.unlabeled]
    with torch.no_grad():
        p = here.model(POOL.tensors[0][indices]).softmax(dim=1).double().tolist()
    known = {i: truth[i] for i in labeled}
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=seeded())))

    def chain(c: int) -> list[int]:
        return [i for _, i in sorted(zip(p, indices, strict=True), key=lambda pair: -margin(pair[0], c))]

    def state(c: int) -> np.ndarray:
        return np.array([0 if i not in known else 1 if known[i] == c else -1 for i in chain(c)])

    def query(c: int, ranks: np.ndarray) -> None:
        known.update({i: truth[i] for i in np.array(chain(c))[ranks].tolist()})

    for c in (2, 1, 0, 3):
        low, high = uncertain_interval(state(c))
        left = 24 // 4 // 2
        while left > 0:
            free = np.array([rank for rank in range(low, high + 1) if state(c)[rank] == 0])
            if not len(free):
                break
            query(c, rng.choice(free, min(parallel, left, len(free)), replace=False))
            low, high = shrink(state(c), low, high, left // parallel, rng)
            left -= min(parallel, left)
    rest = 24 - len(known) + len(labeled)
    for turn, c in enumerate(rng.permutation(4)):
        query(c, outward(state(c), rest * (turn + 1) // 4 - rest * turn // 4))
    assert choose_direct(here, 24, seeded(), parallel=parallel).indices == list(known)[3:]
