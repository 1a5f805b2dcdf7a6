"""Monte Carlo labels against a loop over images, samples and classes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from rarefish.errors import ArgumentError
from rarefish.features import watched
from rarefish.fisher import describe
from rarefish.pseudo_labels.monte_carlo import RIDGE, MonteCarlo, mutual_information, scores_of_all_classes
from tests.cases import CASES, NUM_CLASSES, Case, Plain, images
from tests.reference import information_by_determinant, scores_of_class, trace_statistic

LAYERS = ("conv1", "conv2")


def plain() -> Plain:
    torch.manual_seed(0)
    return Plain().double()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scores_of_all_classes_equal_one_backward_pass_per_class(case: Case) -> None:
    net, twin = case.nets()
    shown = images(3).double()
    with watched(net, case.layers) as watch:
        fast = torch.cat(list(scores_of_all_classes(watch(shown))))
    for label in range(NUM_CLASSES):
        for n, image in enumerate(shown):
            _, slow = scores_of_class(twin, image, label, case.twin_layers or case.layers)
            torch.testing.assert_close(fast[label, n], slow, atol=1e-9, rtol=0)


@pytest.mark.parametrize("statistic", ["trace", "mutual_information"])
def test_monte_carlo_equals_a_loop(statistic: str) -> None:
    net, shown = plain(), images(6).double()
    estimator = MonteCarlo(statistic=statistic, samples=12, degrees=20, noise=0.2, seed=3)
    with watched(net, LAYERS) as watch:
        labels = estimator(watch(shown), None, watch)
    distorted = estimator.distort(shown).unflatten(0, (6, 12))
    for n in range(6):
        values = []
        for label in range(NUM_CLASSES):
            pairs = [scores_of_class(net, sample, label, LAYERS) for sample in distorted[n]]
            z, g = (torch.stack(column) for column in zip(*pairs, strict=True))
            slow = trace_statistic(z, g) if statistic == "trace" else information_by_determinant(z, g, RIDGE)
            values.append(slow)
        assert int(labels[n]) == max(range(NUM_CLASSES), key=lambda c: values[c])


@given(num=st.integers(2, 40), z=st.integers(1, 8), g=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_mutual_information_equals_determinants(num: int, z: int, g: int, seed: int) -> None:
    """Also with fewer samples than channels, where the covariances are singular."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, num, z, generator=generator).double()
    scores = torch.randn(2, num, g, generator=generator).double() * 1e-6
    fast = mutual_information(features, scores)
    slow = [information_by_determinant(features[n], scores[n], RIDGE) for n in range(2)]
    torch.testing.assert_close(fast, torch.tensor(slow, dtype=torch.float64), atol=1e-6, rtol=1e-6)
    assert (fast >= -1e-9).all()


def test_mutual_information_of_gaussians_is_the_closed_form() -> None:
    """I = -½ log(1 - ρ²) for two correlated Gaussians."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 200_000, 1, generator=generator).double()
    g = 0.8 * z + 0.6 * torch.randn(z.shape, generator=generator).double()
    assert float(mutual_information(z, g)) == pytest.approx(-0.5 * math.log(1 - 0.64), abs=0.01)


@pytest.mark.parametrize("dead", ["features", "scores", "both", "copies"])
def test_mutual_information_is_finite_where_channels_are_dead(dead: str) -> None:
    z, g = torch.randn(2, 16, 5), torch.randn(2, 16, 5) * 1e-20
    if dead == "copies":
        z[..., 1:] = z[..., :1]
        g = z.clone()
    if dead in ("features", "both"):
        z[..., :] = 0.3
    if dead in ("scores", "both"):
        g[..., :] = 0
    information = mutual_information(z, g)
    assert torch.isfinite(information).all()
    if dead not in ("copies",):
        torch.testing.assert_close(information, torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    else:
        assert (information > 5).all()


def test_the_batch_an_image_is_in_does_not_matter() -> None:
    data = TensorDataset(images(9).double())
    estimator = MonteCarlo(samples=8, noise=0.3, degrees=30)
    runs = [describe(plain(), data, layers=LAYERS, labels=estimator, batch_size=b).label.tolist() for b in (1, 4, 9)]
    assert runs[0] == runs[1] == runs[2]
    assert len(set(runs[0])) > 1


def test_samples_degrees_noise_and_seed_are_settings() -> None:
    shown = images(2)
    assert len(MonteCarlo(samples=5).distort(shown)) == 10
    still = MonteCarlo(samples=3, degrees=0, noise=0).distort(shown)
    torch.testing.assert_close(still, shown.repeat_interleave(3, dim=0), atol=1e-5, rtol=0)
    noisy = MonteCarlo(samples=200, degrees=0, noise=0.5).distort(torch.zeros(1, 1, 6, 6))
    assert float(noisy.std()) == pytest.approx(0.5, rel=0.05)
    above = torch.zeros(1, 1, 9, 9)
    above[..., 0, 4] = 1
    turned = MonteCarlo(samples=20, degrees=45, noise=0).distort(above).argmax(dim=3).amax(dim=(1, 2))
    assert (turned < 4).any() and (turned > 4).any(), "to both sides"
    assert not torch.equal(MonteCarlo(seed=1).distort(shown), MonteCarlo(seed=2).distort(shown))
    bad: list[dict[str, Any]] = [{"samples": 1}, {"degrees": -1.0}, {"noise": -0.1}, {"statistic": "trase"}]
    for settings_ in bad:
        with pytest.raises(ArgumentError):
            MonteCarlo(**settings_)
