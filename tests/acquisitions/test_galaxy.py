"""GALAXY against a breadth-first search."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.acquisitions.galaxy import build_chains, middle_of_shortest_path, sort_chains
from rarefish.errors import ArgumentError
from tests.acquisitions.situations import ANSWERS, POOL, choose, seeded, situation


def shortest_path(state: list[int], reach: int) -> int | None:
    """Returns the number of nodes on the shortest path from a 1 to a -1 over zeros, including both ends."""
    frontier, seen = [i for i, s in enumerate(state) if s == 1], {i for i, s in enumerate(state) if s == 1}
    length = 1
    while frontier:
        length, after = length + 1, []
        for i in frontier:
            for j in range(max(0, i - reach), min(len(state), i + reach + 1)):
                if state[j] == -1 and state[i] == 0:
                    return length
                if j not in seen and state[j] == 0:
                    seen.add(j)
                    after.append(j)
        frontier = after
    return None


@given(state=st.lists(st.sampled_from([0, 0, 0, 1, -1]), min_size=1, max_size=25), reach=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_galaxy_asks_for_the_middle_of_the_shortest_path(state: list[int], reach: int) -> None:
    length, rank = shortest_path(state, reach), middle_of_shortest_path(np.array(state), reach)
    assert (rank is None) == (length is None)
    if rank is not None and length is not None:
        assert state[rank] == 0
        # The middle is as far from a YES as from a NO, give or take one step.
        steps = {}
        for wanted in (1, -1):
            only = [wanted if s == wanted else (0 if s == 0 else 9) for s in state]
            away, reached = 0, {rank}
            while not any(only[i] == wanted for i in reached):
                near = {j for i in reached for j in range(max(0, i - reach), min(len(state), i + reach + 1))}
                reached, away = {j for j in near if only[j] in (0, wanted)} | reached, away + 1
            steps[wanted] = away
        assert steps[1] + steps[-1] == length - 1 and abs(steps[1] - steps[-1]) <= 1


def test_galaxy_chains_put_the_most_likely_image_last() -> None:
    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.55, 0.45]])
    chains = sort_chains(p)
    assert chains[0].tolist() == [2, 3, 1, 0] and chains[1].tolist() == [0, 1, 3, 2]
    assert chains.argsort(axis=1)[0].tolist() == [3, 2, 0, 1]


@pytest.mark.parametrize(("name", "title", "budget"), [("galaxy", "GALAXY", 9), ("direct", "DIRECT", 20)])
def test_acquisitions_that_query_within_a_round_query_only_what_they_choose(name: str, title: str, budget: int) -> None:
    asked: list[int] = []

    def ask(indices: Sequence[int]) -> list[int | None]:
        asked.extend(indices)
        return ANSWERS(indices)

    here = replace(situation(), labels=tuple(POOL.tensors[1][[3, 9, 11]].tolist()), ask=ask)
    assert choose(name, here, budget).indices == asked
    with pytest.raises(ArgumentError, match=f"{title} learns from answers"):
        choose(name, replace(here, ask=None), 3)


def margin(p: list[float], c: int) -> float:
    """Below that of another class; images whose best class this is are told apart by its probability."""
    return p[c] - max(p) if p[c] < max(p) else 1e-8 * p[c]


@pytest.mark.parametrize("budget", [5, 14])
def test_galaxy_equals_a_loop_over_its_answers(budget: int) -> None:
    here = replace(situation(), labels=tuple(POOL.tensors[1][[3, 9, 11]].tolist()))
    indices, generator = [*here.labeled, *here.unlabeled], seeded()
    with torch.no_grad():
        p = here.model(POOL.tensors[0][indices]).softmax(dim=1).double().tolist()
    known, reach = {i: int(POOL.tensors[1][i]) for i in here.labeled}, 1
    for turn in range(budget):
        c = turn % 4
        chain = [i for _, i in sorted(zip(p, indices, strict=True), key=lambda pair: margin(pair[0], c))]
        state = np.array([0 if i not in known else 1 if known[i] == c else -1 for i in chain])
        rank = middle_of_shortest_path(state, reach)
        if rank is None:
            reach += 1
            rank = middle_of_shortest_path(state, reach)
        free = [i for i in indices if i not in known]
        chosen = chain[rank] if rank is not None else free[int(torch.randint(len(free), (), generator=generator))]
        known[chosen] = int(POOL.tensors[1][chosen])
    assert choose("galaxy", here, budget).indices == list(known)[3:]


def test_labels_are_recorded_at_their_rank_in_every_chain() -> None:
    here = replace(situation(), labels=tuple(POOL.tensors[1][[3, 9, 11]].tolist()))
    for most_likely_first in (False, True):
        chains = build_chains(here, "a test", most_likely_first)
        chains.query([7])
        label = int(POOL.tensors[1][chains.indices[7]])
        for c in range(4):
            rank = chains.order[c].tolist().index(7)
            assert chains.rank[c, 7] == rank and chains.state[c, rank] == (1 if c == label else -1)
        assert (chains.state != 0).sum() == 4 * 4
