"""Shares of classes against a mixture whose shares are known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rarefish.pseudo_labels.label_shift import (
    class_weights,
    estimate_interval,
    estimate_prior,
    fit_temperature,
    split_folds,
)
from tests.cases import blobs, exact_posterior
from tests.reference import best_temperature, expect_and_maximize, three_folds

UNEVEN = torch.tensor([0.2, 0.5, 0.3])


def uneven_logits(shares: list[float], count: int, sureness: float = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Exact logits under UNEVEN times `sureness`, and the true labels."""
    points, labels = blobs(shares, count, seed)
    return sureness * (exact_posterior(points).double().clamp_min(1e-30) * UNEVEN).log().log_softmax(dim=1), labels


@pytest.mark.parametrize("prior", [[1 / 3, 1 / 3, 1 / 3], [0.2, 0.5, 0.3]], ids=["even", "uneven"])
@pytest.mark.parametrize("shares", [[1 / 3, 1 / 3, 1 / 3], [0.9, 0.08, 0.02], [0.495, 0.495, 0.01]])
def test_the_pools_shares_are_found(shares: list[float], prior: list[float]) -> None:
    points, labels = blobs(shares, 20_000)
    under_prior = exact_posterior(points) * torch.tensor(prior)
    under_prior = under_prior / under_prior.sum(dim=1, keepdim=True)
    found = estimate_prior(under_prior, torch.tensor(prior), floor=1e-3)
    torch.testing.assert_close(found, labels.bincount(minlength=3) / 20_000, atol=0.01, rtol=0)
    assert found.sum() == pytest.approx(1)


def test_em_equals_loops() -> None:
    points, _ = blobs([0.8, 0.15, 0.05], 60)
    prior, seen = [0.2, 0.5, 0.3], exact_posterior(points)
    found = estimate_prior(seen, torch.tensor(prior), floor=0.02)
    assert found.tolist() == pytest.approx(expect_and_maximize(seen.tolist(), prior, 0.02), abs=1e-5)


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


def test_a_class_without_validation_images_has_no_share() -> None:
    """Its probability is small, but divided by a share of nearly 0 it would take the whole pool."""
    points, labels = blobs([0.6, 0.3, 0.1], 2000)
    seen = torch.cat([exact_posterior(points) * 0.999, torch.full((2000, 1), 1e-3)], dim=1)
    found = estimate_prior(seen, torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]), floor=1e-3)
    assert found[3] == 0
    torch.testing.assert_close(found[:3], labels.bincount(minlength=3) / 2000, atol=0.02, rtol=0)


@pytest.mark.parametrize("sureness", [0.5, 1.0, 2.5, 60.0])
def test_the_temperature_equals_a_search(sureness: float) -> None:
    logits, labels = uneven_logits(UNEVEN.tolist(), 300, sureness)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(best_temperature(logits, labels.tolist()), rel=1e-4)
    assert found == pytest.approx(min(max(1, sureness), 20), rel=0.3)


def test_labels_that_happen_to_be_right_make_nothing_surer() -> None:
    logits, _ = uneven_logits(UNEVEN.tolist(), 12)
    assert fit_temperature(logits, logits.argmax(dim=1)) == 1
    assert fit_temperature(logits[:0], torch.empty(0, dtype=torch.long)) == 1


def test_folds_hold_as_many_of_each_class() -> None:
    labels = torch.tensor([0] * 4 + [2] * 9 + [1] * 7)[torch.randperm(20, generator=torch.Generator().manual_seed(1))]
    fold, again = (split_folds(labels, 3, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    rows = [(fold == k).nonzero().flatten().tolist() for k in range(3)]
    assert rows == three_folds(labels.tolist(), torch.Generator().manual_seed(0)) and not torch.equal(fold, again)
    for c in range(3):
        counts = fold[labels == c].bincount(minlength=3)
        assert counts.max() - counts.min() <= 1


def test_what_is_too_sure_of_mistakes_finds_too_many_rare_images_without_a_temperature() -> None:
    """The shares are found although the posterior is four times too sure."""
    known, answers = uneven_logits(UNEVEN.tolist(), 300, sureness=4, seed=1)
    shares = [0.9, 0.09, 0.01]
    logits, labels = uneven_logits(shares, 20_000, sureness=4)
    truth = labels.bincount(minlength=3) / 20_000
    plain = estimate_prior(logits.softmax(dim=1), UNEVEN.double(), 1e-3)
    tempered = estimate_prior((logits / fit_temperature(known, answers)).softmax(dim=1), UNEVEN.double(), 1e-3)
    assert (tempered - truth).abs().sum() < 0.5 * (plain - truth).abs().sum()


def test_the_interval_is_that_of_resampled_estimates() -> None:
    known, answers = uneven_logits(UNEVEN.tolist(), 20, sureness=3, seed=1)
    networks = [uneven_logits([0.8, 0.15, 0.05], 40, sureness=2 + k)[0] for k in range(2)]
    estimate = estimate_prior((networks[0] / 2).softmax(dim=1), UNEVEN.double(), 0.02)
    generator = torch.Generator().manual_seed(0)
    found = estimate_interval(networks, known, answers, UNEVEN.double(), estimate, 0.02, generator)
    generator, estimates = torch.Generator().manual_seed(0), [estimate.tolist()]
    for _ in range(40):
        network = networks[int(torch.randint(2, (), generator=generator))]
        some = torch.randint(20, (20,), generator=generator).tolist()
        temperature = best_temperature(known[some], [int(answers[row]) for row in some])
        images = torch.randint(40, (40,), generator=generator).tolist()
        seen = [(network[row] / temperature).softmax(dim=0).tolist() for row in images]
        estimates.append(expect_and_maximize(seen, UNEVEN.tolist(), 0.02, estimate.tolist(), 50))
    for c in range(3):
        low, high = torch.tensor([share[c] for share in estimates]).quantile(torch.tensor([0.025, 0.975])).tolist()
        assert found[:, c].tolist() == pytest.approx([min(low, estimate[c]), max(high, estimate[c])], abs=1e-4)


def test_the_interval_holds_the_truth() -> None:
    """Where the networks are right but for their sureness, it holds the truth nearly always and is not wide."""
    held = []
    for seed in range(12):
        known, answers = uneven_logits(UNEVEN.tolist(), 60, sureness=2, seed=100 + seed)
        logits, _ = uneven_logits(shares := [0.7, 0.2, 0.1], 400, sureness=2, seed=seed)
        estimate = estimate_prior((logits / fit_temperature(known, answers)).softmax(dim=1), UNEVEN.double(), 1e-3)
        generator = torch.Generator().manual_seed(seed)
        low, high = estimate_interval([logits], known, answers, UNEVEN.double(), estimate, 1e-3, generator).tolist()
        assert all(b - a < 0.25 for a, b in zip(low, high, strict=True))
        held += [a <= share <= b for a, share, b in zip(low, shares, high, strict=True)]
    assert sum(held) >= 0.85 * len(held)
