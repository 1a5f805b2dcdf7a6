"""The posterior of a cross-validated head: its prior, its out-of-fold logits, and the pool's class proportions."""

import pytest
import torch

from rarefish.pseudo_labels.head_posterior import fit_head_posterior
from rarefish.pseudo_labels.label_shift import estimate_prior, fit_temperature
from rarefish.training.linear_head import fit_linear_head
from tests.cases import blobs, exact_posterior


def test_the_prior_is_that_of_the_validation_set() -> None:
    features, labels = blobs([0.5, 0.3, 0.2], 300, seed=1)
    more, own = blobs([0.1, 0.1, 0.8], 60, seed=2)
    rows, answers = torch.cat([features, more]), torch.cat([labels, own])
    prior = labels.bincount(minlength=3) / 300
    fitted = fit_head_posterior(rows, answers, 300, prior, torch.Generator().manual_seed(0))
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    head = fit_linear_head(rows, answers, 3, generator=torch.Generator().manual_seed(seed))
    new, _ = blobs([1.0, 1.0, 1.0], 50, seed=3)
    expected = head.probabilities(new) * prior
    expected = expected / expected.sum(dim=1, keepdim=True)
    assert torch.allclose(fitted.logits.of(new).softmax(dim=1), expected, atol=1e-5)
    held = head.out_of_fold_probabilities[:300] * prior
    assert torch.allclose(fitted.held_logits.softmax(dim=1).float(), held / held.sum(dim=1, keepdim=True), atol=1e-5)
    assert fitted.held_labels.tolist() == labels.tolist()
    assert f"loss {head.out_of_fold_loss:.2f}" in fitted.note


def test_class_proportions_of_a_shifted_pool_are_found() -> None:
    features, labels = blobs([0.34, 0.33, 0.33], 400, seed=1)
    prior = labels.bincount(minlength=3) / 400
    fitted = fit_head_posterior(features, labels, 400, prior, torch.Generator().manual_seed(0))
    pool, truth = blobs([0.9, 0.08, 0.02], 3000, seed=4)
    temperature = fit_temperature(fitted.held_logits, fitted.held_labels)
    probability = (fitted.logits.of(pool).double() / temperature).softmax(dim=1)
    mix = estimate_prior(probability, prior.double(), 1e-3)
    share = truth.bincount(minlength=3) / 3000
    assert mix.tolist() == pytest.approx(share.tolist(), abs=0.02)
    uncorrected = probability.mean(dim=0)
    assert float((uncorrected - share).abs().max()) > 2 * float((mix - share).abs().max())
    assert exact_posterior(pool).shape == probability.shape


def test_a_class_without_validation_rows_has_no_probability_but_finite_logits() -> None:
    features, labels = blobs([0.5, 0.5, 0.0], 80, seed=1)
    more = blobs([0.0, 0.0, 1.0], 10, seed=2)[0]
    rows, answers = torch.cat([features, more]), torch.cat([labels, torch.full((10,), 2)])
    prior = labels.bincount(minlength=3) / 80
    fitted = fit_head_posterior(rows, answers, 80, prior, torch.Generator().manual_seed(0))
    assert fitted.logits.of(more).isfinite().all() and float(fitted.logits.of(more).softmax(dim=1)[:, 2].max()) < 1e-12
    assert fitted.held_logits.isfinite().all() and len(fitted.held_logits) == 80


def test_rows_that_are_never_held_out_are_left_out() -> None:
    features, labels = blobs([0.5, 0.5, 0.0], 40, seed=1)
    labels[7] = 2
    prior = labels.bincount(minlength=3) / 40
    fitted = fit_head_posterior(features, labels, 40, prior, torch.Generator().manual_seed(0))
    assert len(fitted.held_labels) == 39 and 2 not in fitted.held_labels
