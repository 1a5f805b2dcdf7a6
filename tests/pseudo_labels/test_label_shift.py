"""Shares of classes against a mixture whose shares are known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rarefish.pseudo_labels.label_shift import class_weights, estimate_prior
from tests.cases import blobs, exact_posterior


@pytest.mark.parametrize("shares", [[1 / 3, 1 / 3, 1 / 3], [0.9, 0.08, 0.02], [0.495, 0.495, 0.01]])
def test_the_pools_shares_are_found(shares: list[float]) -> None:
    points, labels = blobs(shares, 20_000)
    found = estimate_prior(exact_posterior(points), torch.full((3,), 1 / 3), floor=1e-3)
    torch.testing.assert_close(found, labels.bincount(minlength=3) / 20_000, atol=0.01, rtol=0)
    assert found.sum() == pytest.approx(1)


def test_no_class_is_thought_rarer_than_the_floor() -> None:
    points, _ = blobs([0.5, 0.5, 0.0], 2000)
    assert estimate_prior(exact_posterior(points), torch.full((3,), 1 / 3), floor=0.03)[2] == pytest.approx(
        0.03, abs=0.003
    )


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_classes_are_drawn_as_often_as_in_the_validation_set(labels: list[int]) -> None:
    prior = torch.tensor([0.4, 0.3, 0.2, 0.1])
    weights = class_weights(torch.tensor(labels), prior)
    for c in set(labels):
        share = sum(float(w) for w, label in zip(weights, labels, strict=True) if label == c)
        assert share == pytest.approx(float(prior[c]), rel=1e-5)


def test_the_floor_leaves_room_for_many_classes() -> None:
    sure = torch.full((50, 2000), 1e-9)
    sure[:, 0] = 1
    assert estimate_prior(sure, torch.full((2000,), 1 / 2000), floor=1e-3)[0] > 0.8
