"""Kernels against Pearson correlations of single pairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.descriptors import Descriptors
from rarefish.kernels import KERNELS, largest_similarity, similarity, standardize, standardize_rows
from tests.reference import kernel_value


def random_descriptors(count: int, widths: tuple[int, ...] = (3, 5), seed: int = 0) -> Descriptors:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, sum(widths))
    features, scores = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    zeros = torch.zeros(count, dtype=torch.long)
    layers = tuple(f"layer{j}" for j in range(len(widths)))
    return Descriptors(
        torch.arange(count),
        features,
        scores,
        zeros,
        zeros.double(),
        zeros,
        zeros[:, None][:, :0].double(),
        layers,
        widths,
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("widths", [(4,), (3, 5), (2, 2, 6)])
def test_equals_the_formula_pair_by_pair(kernel: str, widths: tuple[int, ...]) -> None:
    a, b = random_descriptors(4, widths, 1), random_descriptors(6, widths, 2)
    slow = [
        [kernel_value(za, ga, zb, gb, widths, kernel) for zb, gb in zip(b.features, b.scores, strict=True)]
        for za, ga in zip(a.features, a.scores, strict=True)
    ]
    fast = similarity(standardize(a), standardize(b), kernel)
    torch.testing.assert_close(fast, torch.tensor(slow, dtype=torch.float64), atol=1e-10, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_largest_similarity_bounds_the_kernel_and_is_that_of_an_image_with_itself(kernel: str) -> None:
    one_layer, layers = random_descriptors(40, (5,)), random_descriptors(40, (3, 5))
    itself = similarity(standardize(one_layer), standardize(one_layer), kernel).diagonal()
    torch.testing.assert_close(itself, torch.full_like(itself, largest_similarity(5, kernel)))
    assert (
        float(similarity(standardize(layers), standardize(layers), kernel).max())
        <= largest_similarity(8, kernel) + 1e-9
    )


def test_product_is_the_inner_product_of_block_gradients() -> None:
    """⟨g zᵀ, g' z'ᵀ⟩ = (g·g')(z·z'): the kernel of the paper's appendix."""
    points = standardize(random_descriptors(5, (4,)))
    blocks = torch.einsum("nl,nm->nlm", points.scores[0], points.features[0]).flatten(1)
    torch.testing.assert_close(similarity(points, points, "fisher"), blocks @ blocks.T)


@given(scale=st.floats(1e-30, 1e30), shift=st.floats(-10, 10))
@settings(max_examples=50, deadline=None)
def test_scale_and_shift_do_not_matter(scale: float, shift: float) -> None:
    values = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(standardize_rows((values + shift) * scale), standardize_rows(values), atol=1e-9, rtol=0)


def test_rows_have_mean_zero_and_variance_one() -> None:
    rows = standardize_rows(torch.randn(5, 20, dtype=torch.float64) * 3 + 2)
    torch.testing.assert_close(rows.mean(dim=1), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(rows.var(dim=1, correction=0), torch.ones(5, dtype=torch.float64))


def test_tiny_float32_scores_keep_their_direction() -> None:
    values = torch.randn(4, 9)
    torch.testing.assert_close(standardize_rows(values * 1e-30), standardize_rows(values), atol=1e-4, rtol=0)


@pytest.mark.parametrize("level", [0.0, 1.0, 0.1, 1e30])
def test_a_flat_row_becomes_zero(level: float) -> None:
    assert torch.equal(standardize_rows(torch.full((2, 7), level)), torch.zeros(2, 7))


def test_what_rounding_leaves_of_a_flat_row_is_no_direction() -> None:
    row = torch.full((1, 7), 0.1)
    row[:, ::2] = torch.nextafter(row[:, ::2], torch.tensor(1.0))
    assert torch.equal(standardize_rows(row), torch.zeros(1, 7))


def test_rows_can_be_taken_out() -> None:
    points = standardize(random_descriptors(6))
    some = points[torch.tensor([4, 1])]
    assert len(some) == 2 and torch.equal(some.scores[1], points.scores[1][[4, 1]])
