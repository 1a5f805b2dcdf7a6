"""MaxHerding against the greedy maximum of its objective."""

import torch
from torch.nn import functional

from tests.acquisitions.situations import choose, vector_situation

NUM = 15
"""Enough images that another radius would give others."""


def test_it_maximizes_the_generalized_coverage_greedily() -> None:
    here = vector_situation()
    assert isinstance(here.pool.tensors, tuple)  # pyright: ignore[reportAttributeAccessIssue]
    points = functional.normalize(here.pool.tensors[0].double(), dim=1)  # pyright: ignore[reportAttributeAccessIssue]

    distance = torch.cdist(points, points)

    def value(chosen: list[int]) -> float:
        return float((-(distance[here.unlabeled][:, chosen].amin(dim=1) ** 2)).exp().sum())

    expected: list[int] = []
    for _ in range(NUM):
        free = [i for i in here.unlabeled if i not in expected]
        expected.append(max(free, key=lambda i: value([*here.labeled, *expected, i])))
    chosen = choose("max_herding", here, NUM)
    assert chosen.indices == expected and chosen.passes == 5 + 114
