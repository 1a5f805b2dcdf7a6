"""The solver finds scikit-learn's optimum, whatever it starts from and however many problems it solves at once."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rarefish.training.logistic_regression import ABSENT, Problems, minimize, ridge_path, to_coordinates


def rows(count: int, width: int, num_classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of unequal scale, labels of unequal frequency and weights; every class occurs."""
    generator = torch.Generator().manual_seed(seed)
    share = 1 / torch.arange(1.0, num_classes + 1)
    labels = torch.cat([torch.arange(num_classes), share.multinomial(count - num_classes, True, generator=generator)])
    means = torch.randn(num_classes, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, width, generator=generator, dtype=torch.float64)
    features = (means[labels] + noise) * torch.logspace(-1, 0.5, width, dtype=torch.float64) + 2
    return features, labels, torch.rand(count, generator=generator, dtype=torch.float64) + 0.5


def solve(features: Tensor, labels: Tensor, weight: Tensor, ridge: float, num_classes: int = 4) -> Tensor:
    """The probabilities of the rows under the solution in float64."""
    coordinates = to_coordinates(features, weight)
    problems = Problems.of(coordinates, labels, weight[:, None], num_classes, torch.float64)
    theta, has_converged = minimize(problems, ridge, problems.first_guess(), 1e-11)
    assert has_converged
    weight_DC, bias_C = coordinates.to_features(theta[:, 0])
    return (features @ weight_DC + bias_C).softmax(dim=1)


@pytest.mark.parametrize("shape", [(30, 50), (60, 12)])
@pytest.mark.parametrize("ridge", [0.01, 1.0, 300.0])
def test_equals_scikit_learn(shape: tuple[int, int], ridge: float) -> None:
    features, labels, weight = rows(*shape)
    twin = LogisticRegression(C=1 / ridge, tol=1e-9, max_iter=10_000)
    twin.fit(features.numpy(), labels.numpy(), weight.numpy())
    theirs = twin.predict_proba(features.numpy())
    assert np.abs(solve(features, labels, weight, ridge).numpy() - theirs).max() < 1e-4


def test_rows_keep_their_products_in_the_coordinates() -> None:
    for shape in ((20, 35), (35, 20)):
        features, _, weight = rows(*shape)
        found = to_coordinates(features, weight)
        centered = features - (weight / weight.sum()) @ features
        points = found.points[:, :-1]
        torch.testing.assert_close(points @ points.T, centered @ centered.T)
        torch.testing.assert_close((weight[:, None] * points**2).sum(dim=0), found.power[:-1])
        theta = torch.randn(found.points.shape[1], 3, dtype=torch.float64)
        weight_DC, bias_C = found.to_features(theta)
        torch.testing.assert_close(features @ weight_DC + bias_C, found.points @ theta)


def test_copies_and_constant_features_leave_no_directions_of_rounding_errors() -> None:
    features, _, weight = rows(12, 30)
    copies = torch.cat([torch.cat([features, features]), torch.ones(24, 1)], dim=1)
    found = to_coordinates(copies, torch.cat([weight, weight]))
    assert found.points.shape == (24, 12)  # 11 differences of rows, and the bias


def test_problems_solved_together_equal_each_alone() -> None:
    features, labels, weight = rows(40, 25)
    weights = torch.stack([weight, weight.where(torch.arange(40) % 3 > 0, 0), weight**2], dim=1)
    coordinates = to_coordinates(features, weight)
    together = Problems.of(coordinates, labels, weights, 4, torch.float64)
    theta, _ = minimize(together, 2.0, together.first_guess(), 1e-12)
    for problem, alone in enumerate(together.split(1)):
        own, _ = minimize(alone, 2.0, alone.first_guess(), 1e-12)
        torch.testing.assert_close(theta[:, problem], own[:, 0], atol=1e-5, rtol=0)


def test_a_warm_start_ends_where_a_cold_one_ends() -> None:
    features, labels, weight = rows(40, 25)
    problems = Problems.of(to_coordinates(features, weight), labels, weight[:, None], 4, torch.float64)
    ridges = [100.0, 20.0, 1.0, 0.1]
    for ridge, warm in zip(ridges, ridge_path(problems, ridges, 1e-12), strict=True):
        cold, _ = minimize(problems, ridge, problems.first_guess(), 1e-12)
        far, _ = minimize(problems, ridge, 50 * torch.randn_like(cold), 1e-12)
        for other in (cold, far):  # the biases may all be shifted by the same number
            torch.testing.assert_close(
                problems.logits(warm).softmax(2), problems.logits(other).softmax(2), atol=1e-5, rtol=0
            )


def test_a_warm_start_takes_fewer_steps_and_an_extrapolated_one_fewer_still(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, weight = rows(60, 40)
    problems = Problems.of(to_coordinates(features, weight), labels, weight[:, None], 4)
    products: list[str] = []
    multiply = Problems.multiply

    def counted(self: Problems, theta: Tensor) -> Tensor:
        products.append(kind)
        return multiply(self, theta)

    monkeypatch.setattr(Problems, "multiply", counted)
    ridges = [10 ** (2 - number / 2) for number in range(8)]
    kind = "extrapolated"
    list(ridge_path(problems, ridges, 1e-4))
    theta = problems.first_guess()
    for ridge in ridges:
        kind = "warm"
        theta, _ = minimize(problems, ridge, theta, 1e-4)
        kind = "cold"
        minimize(problems, ridge, problems.first_guess(), 1e-4)
    extrapolated, warm, cold = (products.count(start) for start in ("extrapolated", "warm", "cold"))
    assert extrapolated < 0.8 * warm < 0.5 * cold


def test_converges_from_where_a_full_step_leads_astray() -> None:
    features, labels, weight = rows(60, 40)
    problems = Problems.of(to_coordinates(features, weight), labels, weight[:, None], 4)
    far = 50 * torch.randn(problems.first_guess().shape, generator=torch.Generator().manual_seed(0))
    _, has_converged = minimize(problems, 0.01, far, 1e-4)
    assert has_converged


def test_float32_is_exact_where_probabilities_are_almost_one() -> None:
    features, labels, weight = rows(20, 40)
    coordinates = to_coordinates(features, weight)
    single, double = (
        Problems.of(coordinates, labels, weight[:, None], 4, dtype) for dtype in (torch.float32, torch.float64)
    )
    theta, _ = minimize(double, 1e-4, double.first_guess(), 1e-10)
    logits = single.logits(theta.float())
    residual, loss = single.residuals(logits)
    exact, exact_loss = double.residuals(logits.double())
    assert float(exact.abs().max()) < 1e-3
    torch.testing.assert_close(residual.double(), exact, rtol=1e-4, atol=0)
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-4, atol=0)


def test_the_loss_of_hopeless_logits_is_finite() -> None:
    features, labels, weight = rows(20, 40)
    problems = Problems.of(to_coordinates(features, weight), labels, weight[:, None], 4)
    logits = torch.zeros(20, 1, 4)
    logits[:, 0, 0] = 500
    _, loss = problems.residuals(logits)
    expected = (torch.nn.functional.cross_entropy(logits[:, 0], labels, reduction="none") * weight).sum()
    torch.testing.assert_close(loss[0].double(), expected.double(), rtol=1e-5, atol=0)


def test_a_class_without_rows_takes_no_part_and_then_gets_half_a_row() -> None:
    features, labels, weight = rows(40, 12)
    weights = torch.stack([weight, weight.where(labels != 2, 0)], dim=1)
    coordinates = to_coordinates(features, weight)
    problems = Problems.of(coordinates, labels, weights, 5, torch.float64)
    assert problems.offset.tolist() == [[0, 0, 0, 0, ABSENT], [0, 0, ABSENT, 0, ABSENT]]
    theta, _ = minimize(problems, 1.0, problems.first_guess(), 1e-12)
    probability = problems.logits(theta)[:, 1].softmax(dim=1)
    assert float(probability[:, [2, 4]].max()) == 0
    kept = labels != 2
    renamed = torch.tensor([0, 1, -1, 2])[labels[kept]]
    alone = Problems.of(to_coordinates(features[kept], weight[kept]), renamed, weight[kept, None], 3, torch.float64)
    own, _ = minimize(alone, 1.0, alone.first_guess(), 1e-12)
    torch.testing.assert_close(
        probability[kept][:, [0, 1, 3]], alone.logits(own)[:, 0].softmax(dim=1), atol=1e-5, rtol=0
    )
    full = problems.with_absent_classes(theta)
    for problem, absent, used in ((0, 4, torch.ones_like(kept)), (1, 2, kept), (1, 4, kept)):
        assert not full[:-1, problem, absent].any()
        share = (full[-1, problem, absent] - (theta[-1] + problems.offset)[problem].logsumexp(dim=0)).exp()
        assert float(share) == pytest.approx(0.5 / int(used.sum()), rel=1e-6)


def test_new_rows_are_not_taken_for_a_class_without_rows() -> None:
    """With a weak penalty, the logits of the rows are much larger than those of new rows."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(6, 50, generator=generator)
    labels = torch.arange(5)
    features = centers[labels] + 2 * torch.randn(5, 50, generator=generator)
    coordinates = to_coordinates(features, torch.ones(5, dtype=torch.float64))
    problems = Problems.of(coordinates, labels, torch.ones(5, 1, dtype=torch.float64), 6, torch.float64)
    theta, _ = minimize(problems, 1e-4, problems.first_guess(), 1e-12)
    weight_DC, bias_C = coordinates.to_features(problems.with_absent_classes(theta)[:, 0])
    new = centers[:5].repeat(40, 1) + 2 * torch.randn(200, 50, generator=generator)
    assert (new.double() @ weight_DC + bias_C).argmax(dim=1).max() < 5
