"""The best row of each group, against loops."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rarefish.ops.best_per_group import MISSING, best_in_batch, best_in_table


def loop(key: list[int], group: list[int]) -> list[int]:
    best = {g: max(k for k, other in zip(key, group, strict=True) if other == g) for g in group}
    return [k if k == best[g] else MISSING for k, g in zip(key, group, strict=True)]


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 30), st.integers(1, 8))
def test_all_but_the_largest_of_a_group_are_missing(seed: int, centers: int, rows: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    key = torch.stack([torch.randperm(10 * rows, generator=generator)[:rows] - rows for _ in range(centers)])
    group_N = torch.randint(groups, (rows,), generator=generator)
    expected = [loop(row, group_N.tolist()) for row in key.tolist()]
    assert best_in_batch(key, group_N).tolist() == expected
    group_KR = torch.randint(groups, (centers, rows), generator=generator)
    expected = [loop(row, group) for row, group in zip(key.tolist(), group_KR.tolist(), strict=True)]
    assert best_in_table(key, group_KR).tolist() == expected
