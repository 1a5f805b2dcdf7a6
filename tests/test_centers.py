"""k-center against a loop over all pairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.centers import k_center
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
