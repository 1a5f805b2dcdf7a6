"""What every acquisition must do, and each against its brute-force twin."""

import copy
import math

import pytest
import torch

from rarefish import select
from rarefish.acquisitions import ACQUISITIONS, Situation, find_acquisition
from rarefish.errors import ArgumentError
from tests.cases import Plain, labeled

POOL, VALIDATION = labeled(30, 1), labeled(12, 2)


def situation(labeled_: tuple[int, ...] = (3, 9, 11)) -> Situation:
    torch.manual_seed(0)
    return Situation(Plain(), POOL, VALIDATION, labeled_)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("already", [(), (3, 9, 11)])
@pytest.mark.parametrize("budget", [1, 7, 27])
def test_contract(name: str, already: tuple[int, ...], budget: int) -> None:
    """The right count, distinct, only unlabeled, the same by the same generator, pool and model untouched."""
    here = situation(already)
    pool, model = copy.deepcopy(POOL.tensors), copy.deepcopy(here.model.state_dict())
    chosen = ACQUISITIONS[name](here, budget, seeded()).indices
    assert len(chosen) == len(set(chosen)) == budget
    assert not set(chosen) & set(already) and set(chosen) <= set(range(30))
    assert ACQUISITIONS[name](situation(already), budget, seeded()).indices == chosen
    assert all(torch.equal(a, b) for a, b in zip(pool, POOL.tensors, strict=True))
    assert all(torch.equal(value, here.model.state_dict()[name]) for name, value in model.items())
    assert here.model.training


def test_random_is_fair() -> None:
    counts = torch.zeros(30)
    for seed in range(600):
        counts[ACQUISITIONS["random"](situation(), 5, seeded(seed)).indices] += 1
    assert counts[[3, 9, 11]].sum() == 0
    expected = 600 * 5 / 27
    chi_squared = float(((counts[counts > 0] - expected) ** 2 / expected).sum())
    assert chi_squared < 55  # 26 degrees of freedom: 0.1 % of fair draws are above 54


def test_entropy_takes_the_largest() -> None:
    here = situation()
    values = {}
    for i in here.unlabeled:
        p = here.model(POOL.tensors[0][i : i + 1]).softmax(dim=1)[0].tolist()
        values[i] = -sum(q * math.log(q) for q in p)
    best = sorted(values, key=lambda i: -values[i])[:6]
    assert ACQUISITIONS["entropy"](here, 6, seeded()).indices == best


def test_entropy_starts_at_random() -> None:
    here = situation(())
    by_chance = ACQUISITIONS["random"](here, 6, seeded(4)).indices
    assert ACQUISITIONS["entropy"](here, 6, seeded(4)).indices == by_chance


def test_fisher_is_select_and_says_why() -> None:
    here = situation()
    choice = ACQUISITIONS["fisher"](here, 5, seeded())
    chosen = select(here.model, POOL, VALIDATION, budget=5, exclude=here.labeled, generator=seeded())
    assert choice.indices == chosen.indices.tolist()
    assert choice.why is not None and torch.equal(choice.why.centers, chosen.centers)


def test_unknown_names_get_a_hint() -> None:
    assert find_acquisition("random") is ACQUISITIONS["random"]
    with pytest.raises(ArgumentError, match="no acquisition 'entopy'. Did you mean entropy"):
        find_acquisition("entopy")
