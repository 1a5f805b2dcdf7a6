"""MaxHerding against the greedy maximum of its objective."""

import math

from torch.nn import functional

from tests.acquisitions.situations import choose, vector_situation


def test_it_maximizes_the_generalized_coverage_greedily() -> None:
    here = vector_situation()
    assert isinstance(here.pool.tensors, tuple)  # pyright: ignore[reportAttributeAccessIssue]
    points = functional.normalize(here.pool.tensors[0].double(), dim=1)  # pyright: ignore[reportAttributeAccessIssue]

    def value(chosen: list[int]) -> float:
        nearest = [min(float((points[x] - points[a]).norm()) for a in chosen) for x in here.unlabeled]
        return sum(math.exp(-(distance**2)) for distance in nearest)

    expected: list[int] = []
    for _ in range(5):
        free = [i for i in here.unlabeled if i not in expected]
        expected.append(max(free, key=lambda i: value([*here.labeled, *expected, i])))
    chosen = choose("max_herding", here, 5)
    assert chosen.indices == expected and chosen.passes == 5 + 114
