"""The table of matches against a full sort, and its independence of batches, order, shards and depth."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rarefish.descriptors import Descriptors
from rarefish.kernels import KERNELS, Standardized, similarity, standardize
from rarefish.matching import (
    Matches,
    Picks,
    Search,
    distinct,
    first_depth,
    first_occurrences,
    fixed_uniforms,
    match,
    match_batches,
    merge,
    pack,
    sample_by_weight,
    smallest_priority,
    unpack_index,
    unpack_similarity,
)
from tests.reference import distinct_loop
from tests.test_kernels import random_descriptors


def find_distinct(fill: Callable[[int, Tensor], Matches], depth: int, budget: int) -> Picks:
    """The loop of select(), with tables from `fill(depth, indices of settled images)`."""
    search = Search(budget, depth)
    while not search.is_done:
        search = search.advance(fill(search.depth, search.settled.index))
    return search.picks


def pool_with_copies(num: int, copies: int, seed: int) -> Descriptors:
    """Random descriptors of which some rows are exact copies, at shuffled and gappy indices."""
    base = random_descriptors(num, seed=seed)
    rows = torch.arange(num + copies) % num
    index = torch.randperm(3 * len(rows), generator=torch.Generator().manual_seed(seed))[: len(rows)]
    return replace(base[rows], index=index, label=index % 7)


@given(
    num=st.integers(3, 30),
    copies=st.integers(0, 3),
    num_centers=st.integers(1, 6),
    batch=st.integers(1, 33),
    shards=st.integers(1, 4),
    extra_depth=st.integers(0, 5),
    seed=st.integers(0, 10_000),
    is_weighed=st.booleans(),
    kernel=st.sampled_from(sorted(KERNELS)),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_batching_order_sharding_and_depth_give_algorithm_1(
    num: int,
    copies: int,
    num_centers: int,
    batch: int,
    shards: int,
    extra_depth: int,
    seed: int,
    is_weighed: bool,
    kernel: str,
    data: st.DataObject,
) -> None:
    pool = pool_with_copies(num, copies, seed)
    if is_weighed:
        weights = torch.rand(len(pool), 3, generator=torch.Generator().manual_seed(seed)).pow(4)
        pool = replace(pool, posterior=weights / weights.sum(dim=1, keepdim=True))
    budget = data.draw(st.integers(1, len(pool)))
    centers = standardize(random_descriptors(num_centers, seed=seed + 1))
    classes = torch.arange(num_centers) % 3
    depth = min(budget + extra_depth, len(pool))
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed + 2))
    parts = [
        merge((match(pool[rows], centers, classes, kernel, depth) for rows in shard.split(batch)), depth)
        for shard in order.chunk(shards)
    ]
    picks = distinct(merge(parts, depth), budget)
    full = similarity(centers, standardize(pool), kernel)
    probabilities = pool.posterior[:, classes].T.tolist() if is_weighed else None
    expected = distinct_loop(full, pool.index.tolist(), budget, probabilities)
    assert list(zip(picks.index.tolist(), picks.center.tolist(), strict=True)) == expected
    row_of = {int(i): row for row, i in enumerate(pool.index)}
    rows = [row_of[i] for i in picks.index.tolist()]
    if not is_weighed:
        torch.testing.assert_close(picks.similarity, full[picks.center, rows].float())
    assert torch.equal(picks.label, pool.label[rows])


@pytest.mark.parametrize(("budget", "num_centers"), [(100, 1), (125, 125), (64_000, 64_000), (64_000, 10)])
def test_depth_suffices_or_the_table_stays_small(budget: int, num_centers: int) -> None:
    depth = first_depth(budget, Standardized((torch.zeros(num_centers, 1),), ()))
    assert depth <= budget
    assert depth * num_centers >= min(budget, 4 * budget)
    assert depth == budget or depth * num_centers <= 10_000_000


def test_a_table_too_shallow_is_filled_again() -> None:
    """All centers alike ask for the same images: with depth 1 a second and third pass find the rest."""
    pool = random_descriptors(20)
    centers = standardize(pool[torch.zeros(5, dtype=torch.long)])
    passes = []

    def score(depth: int, taken: Tensor) -> Matches:
        assert not len(taken)
        passes.append(depth)
        return match_batches([pool[:7], pool[7:]], centers, torch.zeros(5).long(), "fisher", depth)

    picks = find_distinct(score, 1, budget=4)
    assert isinstance(picks, Picks) and passes == [1, 2, 4]
    best = similarity(centers[:1], standardize(pool), "fisher")[0].topk(4).indices
    assert picks.index.tolist() == best.tolist()


@given(
    num=st.integers(6, 40),
    num_centers=st.integers(1, 8),
    entries=st.integers(1, 40),
    num_lost=st.integers(0, 4),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_a_table_that_may_not_grow_is_chosen_from_and_filled_anew(
    num: int, num_centers: int, entries: int, num_lost: int, seed: int, data: st.DataObject
) -> None:
    """Algorithm 1 on what is left, as deep as the table may be, again and again; some images may be unreadable."""
    pool = random_descriptors(num, seed=seed)
    budget = data.draw(st.integers(1, num))
    centers = standardize(random_descriptors(num_centers, seed=seed + 1))
    deepest = max(1, min(budget, entries // num_centers))
    pool, classes = pool[: num - num_lost], torch.zeros(num_centers).long()

    def score(depth: int, taken: Tensor) -> Matches:
        rows = ~torch.isin(pool.index, taken)
        return match_batches([pool[rows]], centers, classes, "fisher", depth)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rarefish.matching.TABLE_ENTRIES", entries)
        picks = find_distinct(score, 1, budget)
    expected: list[tuple[int, int]] = []
    full = similarity(centers, standardize(pool), "fisher")
    for _ in range(num):
        rows = [row for row in range(len(pool)) if row not in {index for index, _ in expected}]
        ranks = full[:, rows].argsort(dim=1, descending=True)[:, :deepest]
        asked = distinct_loop(full[:, rows], [int(pool.index[row]) for row in rows], len(ranks.unique()))
        expected += asked[: budget - len(expected)]
    assert list(zip(picks.index.tolist(), picks.center.tolist(), strict=True)) == expected
    assert len(expected) == min(budget, len(pool))


def test_one_pass_is_enough_where_no_plausible_image_is_left() -> None:
    """Ten images, of which three are of the centers' class: a longer list would have no more of them."""
    depths: list[int] = []

    def score(depth: int, taken: Tensor) -> Matches:
        assert not len(taken)
        depths.append(depth)
        similarity = torch.tensor([[9.0, 8.0, 7.0] + [-3e30] * 7, [7.0, 8.0, 9.0] + [-3e30] * 7])
        key = pack(similarity, torch.arange(10)).sort(dim=1, descending=True).values[:, :depth]
        return Matches(key, torch.zeros_like(key))

    picks = find_distinct(score, depth=5, budget=5)
    assert depths == [5] and sorted(picks.index[:3].tolist()) == [0, 1, 2] and picks.similarity[3:].tolist() == [0, 0]
    depths.clear()
    find_distinct(score, depth=2, budget=5)
    assert depths == [2, 4, 5][: len(depths)] and len(depths) > 1


def test_a_table_is_deepened_as_long_as_plausible_images_may_be_left() -> None:
    """Two per center fill the budget, but the second center's second is not plausible; the first center's third is."""
    similarity = torch.tensor([[9.0, 8.0, 7.0, -2e30, -3e30], [-2e30, -2e30, -2e30, 5.0, -1.5e30]])
    ranked = pack(similarity, torch.arange(5)).sort(dim=1, descending=True).values

    def score(depth: int, taken: Tensor) -> Matches:
        assert not len(taken)
        return Matches(ranked[:, :depth], torch.zeros_like(ranked[:, :depth]))

    assert find_distinct(score, depth=2, budget=4).index.tolist() == [0, 3, 1, 2]


def test_a_large_batch_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, centers = random_descriptors(50, seed=1), standardize(random_descriptors(3, seed=2))
    whole = match(pool, centers, torch.zeros(3, dtype=torch.long), "fisher", 7)
    monkeypatch.setattr("rarefish.matching.MAX_SIMILARITIES", 3 * 8)
    parts = match(pool, centers, torch.zeros(3, dtype=torch.long), "fisher", 7)
    assert torch.equal(parts.key, whole.key) and torch.equal(parts.label, whole.label)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20), st.integers(0, 2**32 - 1))
def test_keys_hold_similarity_and_index(values: list[float], index: int) -> None:
    similarity_1N = torch.tensor([values])
    key = pack(similarity_1N, torch.full((len(values),), index))
    assert torch.equal(unpack_similarity(key), similarity_1N)
    assert (unpack_index(key) == index).all()
    assert key[0].argsort(stable=True).tolist() == similarity_1N[0].double().argsort(stable=True).tolist()


def test_equal_similarities_go_by_index() -> None:
    key = pack(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([5, 2, 9]))
    assert key[0].argsort(descending=True).tolist() == [1, 0, 2]


@given(st.lists(st.integers(0, 5), max_size=30))
def test_first_occurrences(values: list[int]) -> None:
    rows = first_occurrences(torch.tensor(values, dtype=torch.long)).tolist()
    assert [values[row] for row in rows] == list(dict.fromkeys(values))
    assert rows == sorted(rows)


def test_fixed_uniforms_are_spread_evenly_and_independent_of_their_neighbours() -> None:
    u = fixed_uniforms(torch.arange(20_000))
    assert float(u.min()) > 0 and float(u.max()) <= 1
    assert torch.histc(u, 10, 0, 1).sub(2000).abs().max() < 200  # five standard deviations
    assert torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].abs() < 0.04
    assert torch.equal(fixed_uniforms(torch.tensor([7, 3])), u[[7, 3]])


def test_sums_over_the_sample_estimate_sums_over_the_pool() -> None:
    """Of heavy and of light images, for pools that start at different indices."""
    generator = torch.Generator().manual_seed(0)
    weight, is_light = torch.rand(400, generator=generator) ** 6, torch.arange(400) % 3 > 0
    images, found = replace(random_descriptors(400), posterior=weight[:, None].expand(400, 1)), []
    for pool in range(200):
        described = replace(images, index=torch.arange(400) + 400 * pool)
        table = sample_by_weight([described[:150], described[150:]], 60)
        rows = unpack_index(table.key[0]) - 400 * pool
        assert len(rows.unique()) == 60
        raised = weight[rows].clamp_min(smallest_priority(table, 400))
        found.append([float(raised[is_light[rows]].sum()), float(raised.sum())])
    expected = [float(weight[is_light].sum()), float(weight.sum())]
    assert torch.tensor(found).mean(dim=0).tolist() == pytest.approx(expected, rel=0.03)
    whole = sample_by_weight([images], 400)
    assert smallest_priority(whole, 400) == 0.0 and whole.key.shape == (1, 400)
