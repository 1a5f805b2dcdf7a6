"""k-center against a loop over all pairs, and coverage against gains that are computed anew."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from rarefish.centers import AHEAD, AT_ONCE, BLOCK, WIDTH, closeness, cover, directions, gains, k_center
from rarefish.kernels import KERNELS, similarity, standardize
from tests.reference import k_center_loop
from tests.test_kernels import random_descriptors


@given(num=st.integers(2, 25), data=st.data(), kernel=st.sampled_from(sorted(KERNELS)), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_equals_a_loop(num: int, data: st.DataObject, kernel: str, seed: int) -> None:
    count = data.draw(st.integers(1, num - 1))
    points = standardize(random_descriptors(num, seed=seed))
    rows = k_center(points, count, kernel, torch.Generator().manual_seed(seed)).tolist()
    assert rows == k_center_loop(similarity(points, points, kernel), rows[0], count)
    assert len(set(rows)) == count


def test_takes_all_when_there_are_no_more() -> None:
    assert k_center(standardize(random_descriptors(4)), 9).tolist() == [0, 1, 2, 3]


def test_the_first_is_drawn_by_the_generator() -> None:
    points = standardize(random_descriptors(50))
    firsts = {int(k_center(points, 3, generator=torch.Generator().manual_seed(s))[0]) for s in range(20)}
    assert len(firsts) > 5
    same = [k_center(points, 7, generator=torch.Generator().manual_seed(3)).tolist() for _ in range(2)]
    assert same[0] == same[1]


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_of_a_point_are_not_both_taken_early(copies: int) -> None:
    one = random_descriptors(6)
    points = standardize(one[torch.arange(6).repeat(copies)])
    rows = k_center(points, 6, "features", torch.Generator().manual_seed(0))
    assert len({int(row) % 6 for row in rows}) == 6


@given(num=st.integers(2, 40), count=st.integers(1, 40), num_known=st.integers(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_coverage_is_greedy(num: int, count: int, num_known: int, seed: int) -> None:
    check_greedy(num, count, num_known, seed)


def test_coverage_is_greedy_among_more_points_than_are_compared_at_once() -> None:
    check_greedy(BLOCK + AHEAD + 30, AHEAD, 3, seed=0)


def check_greedy(num: int, count: int, num_known: int, seed: int) -> None:
    """Each choice has the largest gain of all points, computed anew."""
    generator = torch.Generator().manual_seed(seed)
    points, known = (normalize(torch.randn(n, 5, generator=generator).double(), dim=1) for n in (num, num_known))
    weight = torch.rand(num, generator=generator).double() ** 3
    rows = cover(points, weight, known, min(count, num)).tolist()
    assert len(set(rows)) == min(count, num)
    between = ((points @ points.T - 1) / WIDTH).exp()
    covered = torch.stack([((point @ points.T - 1) / WIDTH).exp() for point in known] or [torch.zeros(num)]).amax(dim=0)
    for position, row in enumerate(rows):
        gain = (between - covered).clamp_min(0).double() @ weight
        gain[rows[:position]] = -1
        assert gain[row] >= gain.max() - 1e-9
        covered = torch.maximum(covered, between[row])


def test_coverage_by_points_that_are_equally_good() -> None:
    """More points than are updated together have the same gain: at first all of them, then 0."""
    points, weight = torch.eye(3 * AT_ONCE), torch.ones(3 * AT_ONCE)
    rows = cover(points, weight, points[:0], len(points)).tolist()
    assert sorted(rows) == list(range(len(points)))
    copies = points[:1].expand(3 * AT_ONCE, -1)
    assert sorted(cover(copies, weight, points[:1], len(copies)).tolist()) == list(range(len(copies)))


def test_gains_in_blocks_equal_those_of_the_whole_table() -> None:
    generator = torch.Generator().manual_seed(0)
    points = normalize(torch.randn(2 * BLOCK + 30, 5, generator=generator), dim=1)
    weight, covered = torch.rand(2, len(points), generator=generator)
    expected = (closeness(points, points) - covered).clamp_min(0) @ weight
    assert torch.allclose(gains(points, weight, covered), expected, rtol=1e-4)


def test_directions_are_standardized_and_have_length_1() -> None:
    features = torch.tensor([[3.0, 10.0], [1.0, 30.0]])
    found = directions(features, torch.tensor([1.0, 10.0]), torch.tensor([2.0, 20.0]))
    assert torch.allclose(found, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert torch.allclose(closeness(found, found), torch.tensor([[1.0, math.exp(-1.25)], [math.exp(-1.25), 1.0]]))
