"""What is left of a pool is what a list of it would be, in less memory."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rarefish.data import remaining_indices as indices
from rarefish.data.remaining_indices import all_but, draw_some, without


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))), st.data())
def test_is_the_list_without_what_is_missing(case: tuple[int, set[int]], data: st.DataObject) -> None:
    count, missing = case
    plain, left = [i for i in range(count) if i not in missing], all_but(missing, count)
    assert list(left) == plain and len(left) == len(plain) and [left[i] for i in range(len(left))] == plain
    cut = data.draw(st.slices(len(plain)) if plain else st.just(slice(0, 0)))
    assert list(left[cut]) == plain[cut] and list(left[cut][:3]) == plain[cut][:3]
    assert [i for i in range(-1, count + 1) if i in left] == plain
    taken = data.draw(st.sets(st.sampled_from(plain))) if plain else set[int]()
    assert list(without(left, taken)) == [i for i in plain if i not in taken]


def test_a_billion_take_no_memory() -> None:
    left = all_but(range(0, 1_000_000_000, 100_000_000), 1_000_000_000)
    assert len(left) == 999_999_990 and left[0] == 1 and left[-1] == 999_999_999
    assert list(left[500_000_000:500_000_003]) == [500_000_006, 500_000_007, 500_000_008]


def test_some_are_drawn_without_shuffling_all() -> None:
    few = draw_some(1000, 10**9, torch.Generator().manual_seed(0))
    assert len(few) == 1000 == len(few.unique()) and int(few.max()) < 10**9 and bool((few.diff() > 0).all())
    assert 4e8 < few.double().mean() < 6e8
    assert draw_some(5, 3, torch.Generator()).tolist() == [0, 1, 2] and indices.MAX_PERMUTED < 10**9
