"""The GPU's kernels against plain matrices: on a GPU where there is one, else through Triton's interpreter."""

import importlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.kernels import Standardized, largest_similarity, similarity, standardize, standardize_rows
from rarefish.matching import DOUBTFUL, FULL, LAST, Picks, match_batches, weigh
from tests.test_kernels import random_descriptors
from tests.test_matching import find_distinct

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
pytest.importorskip("triton", reason="Triton is not installed")
fused = importlib.import_module("rarefish.ops.fused_matching")
TILES = fused.Tiles() if ON_GPU else fused.Tiles(centers=16, images=64)


def points(count: int, widths: tuple[int, ...], seed: int) -> Standardized:
    generator = torch.Generator().manual_seed(seed)

    def layers() -> tuple[torch.Tensor, ...]:
        return tuple(standardize_rows(torch.randn(count, width, generator=generator)).to(DEVICE) for width in widths)

    return Standardized(layers(), layers())


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 150),
    st.lists(st.integers(5, 70), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["fisher", "sum", "features"]),
    st.sampled_from([1, 2, 8, 17, 64]),
    st.booleans(),
)
def test_equals_the_whole_matrix(
    num_centers: int, num_images: int, widths: tuple[int, ...], kernel: str, depth: int, is_weighed: bool
) -> None:
    centers, pool = points(num_centers, widths, 0), points(num_images, widths, 1)
    expected = similarity(centers, pool, kernel)
    probabilities = None
    if is_weighed:
        posterior = torch.rand(num_images, 4, generator=torch.Generator().manual_seed(2)).pow(3).to(DEVICE)
        classes = (torch.arange(num_centers) % 4).to(DEVICE)
        largest = largest_similarity(sum(widths), kernel)
        probabilities = fused.ClassProbabilities(posterior, classes, FULL, DOUBTFUL, float(largest), LAST)
        expected = weigh(expected, posterior.T[classes], largest)
    packed, exact = (tuple(fused.pack(p, kernel, d) for p in (centers, pool)) for d in (torch.float16, torch.float32))
    found, rows = fused.best_matches(*packed, depth, probabilities=probabilities, exact=exact, tiles=TILES)
    best = expected.topk(min(depth, num_images), dim=1).values
    torch.testing.assert_close(found, best, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found, expected.gather(1, rows), rtol=1e-4, atol=1e-3)
    assert all(len(set(row)) == len(row) for row in rows.tolist())


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 20), st.integers(40, 150), st.integers(1, 9), st.integers(0, 5), st.booleans())
def test_nothing_above_the_floor_is_missed(count: int, num_images: int, depth: int, at: int, is_weighed: bool) -> None:
    centers, pool = points(count, (40, 30), 3), points(num_images, (40, 30), 4)
    whole, probabilities = similarity(centers, pool, "fisher"), None
    if is_weighed:
        posterior = torch.rand(num_images, 3, generator=torch.Generator().manual_seed(5)).to(DEVICE)
        classes = (torch.arange(count) % 3).to(DEVICE)
        probabilities = fused.ClassProbabilities(posterior, classes, FULL, DOUBTFUL, 70.0**2, LAST)
        whole = weigh(whole, posterior.T[classes], 70**2)
    floor = whole.topk(at + 1, dim=1).values[:, -1]
    packed, exact = (tuple(fused.pack(p, "fisher", d) for p in (centers, pool)) for d in (torch.float16, torch.float32))
    found, _ = fused.best_matches(*packed, depth, probabilities=probabilities, exact=exact, floor=floor, tiles=TILES)
    best = whole.topk(depth, dim=1).values
    is_due = best >= floor[:, None]
    torch.testing.assert_close(found[is_due], best[is_due], rtol=1e-4, atol=1e-3)
    assert bool((found <= best + 1e-3 * best.abs() + 1e-3).all())


def test_copies_come_in_the_order_of_their_rows() -> None:
    one = points(1, (16,), 0)
    pool = Standardized(tuple(z.repeat(200, 1) for z in one.features), tuple(g.repeat(200, 1) for g in one.scores))
    _, rows = fused.best_matches(fused.pack(one), fused.pack(pool), 5, tiles=TILES)
    assert rows[0].tolist() == [0, 1, 2, 3, 4]


def test_many_images_in_many_parts_in_16_bits_and_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    centers, pool = points(3, (8, 8), 0), points(2000, (8, 8), 1)
    monkeypatch.setattr(fused, "MAX_MAXIMA", 3 * 21)
    packed = fused.pack(centers), fused.pack(pool)
    found, rows = fused.best_matches(*packed, 8, tiles=TILES)
    whole = similarity(centers, pool, "fisher")
    torch.testing.assert_close(found, whole.topk(8, dim=1).values, rtol=3e-3, atol=0.1)
    torch.testing.assert_close(found, whole.gather(1, rows), rtol=3e-3, atol=0.1)
    sharp = tuple(fused.pack(side, dtype=torch.float32) for side in (centers, pool))
    _, rows = fused.best_matches(*packed, 8, exact=sharp, tiles=TILES)
    assert torch.equal(rows, whole.topk(8, dim=1).indices)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 900), st.integers(1, 5), st.integers(0, 9))
def test_the_largest_of_long_rows(length: int, count: int, seed: int) -> None:
    values = torch.randint(0, 500, (3, length), generator=torch.Generator().manual_seed(seed)).float()
    value, place = fused._top(values, count)
    assert torch.equal(value, values.topk(min(count, length), dim=1).values)
    assert torch.equal(value, values.gather(1, place)) and all(len(set(row)) == len(row) for row in place.tolist())


@pytest.mark.parametrize("kernel", ["fisher", "features"])
def test_a_table_by_the_kernels_equals_the_plain_one(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, failures = random_descriptors(150, seed=1), random_descriptors(5, seed=2)
    pool = replace(
        pool,
        **{name: getattr(pool, name).float().to(DEVICE) for name in ("features", "scores")},
        label=(pool.index % 3).to(DEVICE),
        posterior=torch.rand(150, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE),
    )
    centers = standardize(failures)
    centers = Standardized(
        tuple(z.float().to(DEVICE) for z in centers.features), tuple(g.float().to(DEVICE) for g in centers.scores)
    )
    classes = torch.arange(5, device=DEVICE) % 3

    def find() -> Picks:
        batches = [pool[rows] for rows in torch.arange(150, device=DEVICE).split(40)]
        return find_distinct(lambda depth, _: match_batches(batches, centers, classes, kernel, depth), 20, budget=20)

    plain = find()
    monkeypatch.setattr("rarefish.matching.is_fusible", lambda *_: True)
    monkeypatch.setattr("rarefish.matching.AT_ONCE", 70)
    calls: list[int] = []
    best_matches = fused.best_matches

    def counted(centers: object, pool: list[object], *how: object, **more: object) -> object:
        calls.append(len(pool))
        return best_matches(centers, pool, *how, **more)

    monkeypatch.setattr("rarefish.ops.fused_matching.best_matches", counted)
    quick = find()
    assert calls == [80, 70]
    assert torch.equal(quick.index, plain.index) and torch.equal(quick.center, plain.center)
    assert torch.equal(quick.label.cpu(), plain.label.cpu())
    torch.testing.assert_close(quick.similarity, plain.similarity, rtol=1e-4, atol=1e-3)


def test_where_the_kernels_fail_the_plain_way_is_taken_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    centers, pool = points(2, (4,), 0), points(9, (4,), 1)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such instruction\nmore")

    monkeypatch.setattr(fused, "best_matches", broken)
    monkeypatch.setattr(fused, "FAILED", [])
    with pytest.warns(UserWarning, match="plain PyTorch is used instead: no such instruction$"):
        assert fused.best_exactly(centers, pool, 3, "fisher", None) is None
    assert fused.FAILED == ["no such instruction\nmore"]
