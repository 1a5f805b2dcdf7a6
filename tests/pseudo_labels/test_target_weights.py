"""Weights of pool images against Bayes' rule, and the needs and the reliability behind them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rarefish.features import View
from rarefish.pseudo_labels.posterior import Evidence, Seen, TrustedPosterior
from rarefish.pseudo_labels.target_weights import (
    Judged,
    TargetWeights,
    judge,
    target_weights,
    weigh_images,
)

PRIOR, MIX = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.9, 0.08, 0.02])


def random_logits(num: int, seed: int) -> Tensor:
    return 2 * torch.randn(num, 3, generator=torch.Generator().manual_seed(seed))


def test_weights_are_densities_of_the_validation_set_over_those_of_the_pool() -> None:
    """For class-conditional densities, posterior and density ratio follow from Bayes' rule."""
    density = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) + 0.01  # p(x | c)
    logits = (density * PRIOR).log() + torch.randn(50, 1, generator=torch.Generator().manual_seed(1))
    unsure = torch.full((50, 3), 1 / 3)
    found = weigh_images(logits, unsure, (MIX / PRIOR).log(), torch.ones(3))
    ratio = (density @ PRIOR) / (density @ MIX)
    torch.testing.assert_close(found.sum(dim=1), ratio)
    torch.testing.assert_close(found / found.sum(dim=1, keepdim=True), density * MIX / (density @ MIX)[:, None])


def test_needed_classes_and_doubtful_images_count_more() -> None:
    logits = random_logits(20, 2)
    sure = torch.tensor([[0.7, 0.1, 0.2]]).expand(20, 3)
    need = torch.tensor([0.1, 1.0, 4.0])
    found = weigh_images(logits, sure, torch.zeros(3), need).sum(dim=1)
    torch.testing.assert_close(found, (logits.softmax(dim=1) @ need) * 0.5)


def made_posterior(answers: Tensor, labels: list[int], rows: list[int]) -> TrustedPosterior:
    return TrustedPosterior(
        lambda seen: seen.features,
        (MIX / PRIOR).log(),
        "",
        MIX,
        MIX.expand(2, 3),
        2.0,
        answers.double(),
        torch.tensor(labels),
        torch.tensor(rows),
    )


def made_evidence() -> Evidence:
    features = random_logits(7, 3)
    return Evidence(
        model=nn.Identity(),
        trusted=Seen(features, features),
        labels=torch.tensor([0, 0, 1, 1, 2, 0, 2]),
        num_validation=5,
        prior=PRIOR,
        sample=Seen(features, features),
        pool_size=100,
        generator=torch.Generator(),
        device=torch.device("cpu"),
        logits=random_logits(7, 4),
        index=torch.arange(5),
    )


def test_validation_images_are_judged_out_of_fold() -> None:
    """The only image of class 2 was never held out: its classifier knows it, so its own class does not count."""
    evidence, held = made_evidence(), random_logits(4, 5)
    judged = judge(evidence, made_posterior(held, [0, 0, 1, 1], [0, 1, 2, 3]), cross_fit=True)
    torch.testing.assert_close(judged.probabilities[:4], (held / 2).softmax(dim=1))
    alone = evidence.trusted.features[4].softmax(dim=0)
    assert judged.probabilities[4].tolist() == pytest.approx([float(alone[0]), float(alone[1]), 0.0])
    assert int(judged.predictions[4]) != 2


def test_without_cross_fitting_the_model_itself_is_judged_at_its_own_temperature() -> None:
    evidence = made_evidence()
    sure = replace(evidence, logits=20 * torch.eye(3)[[0, 1, 1, 1, 2, 0, 2]])  # wrong once in five, and always sure
    judged = judge(sure, made_posterior(random_logits(4, 5), [0, 0, 1, 1], [0, 1, 2, 3]), cross_fit=False)
    assert judged.predictions.tolist() == [0, 1, 1, 1, 2]
    assert 0.7 < float(judged.probabilities.amax(dim=1).mean()) < 0.9


def test_weights_use_the_mean_of_all_networks() -> None:
    """The network that learned all labels counts as much as each of those that learned without a fold."""
    others = tuple(lambda seen, factor=factor: factor * seen.features for factor in (-1.0, 0.5, 3.0))
    one = made_posterior(random_logits(4, 5), [0, 0, 1, 1], [0, 1, 2, 3])
    several = replace(one, fold_candidates=others)
    features = random_logits(6, 7)
    mean = sum((factor * features).softmax(dim=1) for factor in (1.0, -1.0, 0.5, 3.0)) / 4
    assert isinstance(mean, torch.Tensor)
    torch.testing.assert_close(several.mean_logits(Seen(features, features)).exp(), mean)
    torch.testing.assert_close(one.mean_logits(Seen(features, features)), features)
    weights, view = TargetWeights(several, torch.zeros(3), torch.ones(3)), View(features, torch.empty(0), (features,))
    logits = mean.log() / one.temperature
    expected = weigh_images(logits, logits.softmax(dim=1), torch.zeros(3), torch.ones(3))
    torch.testing.assert_close(weights(view, None, lambda _: view), expected)


def test_needs_are_the_missing_probabilities_by_class() -> None:
    judged = Judged(torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.8, 0.2, 0.0]]), torch.tensor([0, 0, 1]))
    expected = torch.tensor([0.3, 0.8, 0.55]) + 0.02  # no image of class 2: the mean of the others
    torch.testing.assert_close(judged.needs(), expected.sqrt())


@pytest.mark.parametrize(
    ("predictions", "labels", "expected"),
    [([0, 1, 2], [0, 1, 2], 1.0), ([0, 0, 0], [0, 1, 2], 0.0), ([0, 0, 0, 0, 1], [0, 0, 0, 0, 1], 1.0)],
)
def test_reliability_is_macro_recall_beyond_guessing(
    predictions: list[int], labels: list[int], expected: float
) -> None:
    posterior = made_posterior(torch.eye(3)[predictions], labels, list(range(len(labels))))
    assert posterior.reliability == pytest.approx(expected)


def test_an_unreliable_posterior_corrects_the_proportions_less() -> None:
    evidence = made_evidence()
    half = made_posterior(torch.eye(3)[[0, 1, 1, 1]], [0, 0, 1, 1], [0, 1, 2, 3])  # recalls 0.5 and 1
    judged = judge(evidence, half, cross_fit=True)
    weights = target_weights(evidence, half, judged, cross_fit=True)
    share = (0.75 - 1 / 3) / (1 - 1 / 3)
    torch.testing.assert_close(weights.log_shift_C, share * (MIX / PRIOR).log())
    assert weights.temperature is None


def test_true_labels_of_the_pool_give_an_upper_bound() -> None:
    evidence = made_evidence()
    posterior = made_posterior(random_logits(4, 5), [0, 0, 1, 1], [0, 1, 2, 3])
    judged = judge(evidence, posterior, cross_fit=True)
    pool_labels = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    weights = target_weights(evidence, posterior, judged, cross_fit=True, pool_labels=pool_labels)
    assert weights.needs_labels
    vectors = random_logits(6, 9)
    view = View(vectors, vectors, (), vectors)
    found = weights(view, torch.tensor([0, 1, 2, 0, 1, 2]), lambda images: view)
    doubt = 1 - (view.features_ND / 2).softmax(dim=1).topk(2, dim=1).values.diff(dim=1).neg().squeeze(1)
    ratio = (PRIOR / MIX)[[0, 1, 2, 0, 1, 2]] * judged.needs()[[0, 1, 2, 0, 1, 2]]
    torch.testing.assert_close(found.sum(dim=1), ratio * doubt)
