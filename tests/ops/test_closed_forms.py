"""Closed forms of a linear head against autograd on the same head."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rarefish import Embeddings, describe
from rarefish.data.reader import Reader
from rarefish.descriptors import Descriptors, concatenate
from rarefish.errors import ArgumentError, DataError
from rarefish.fisher import DescriberConfig, configure
from rarefish.kernels import KERNELS, similarity, standardize
from rarefish.ops.closed_forms import LinearPass, contrasts, linear_layer, reduced
from rarefish.pseudo_labels.rules import given, predicted


def head(classes: int, width: int, dtype: torch.dtype = torch.float64, bias: bool = True) -> nn.Linear:
    torch.manual_seed(classes * width)
    layer = nn.Linear(width, classes, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight += torch.randn(width, dtype=dtype)  # what the classes have in common
        layer.weight *= 2
    return layer


def data(count: int, width: int, classes: int, seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    values = (3 + rng.normal(size=(count, width))).astype(np.float32)
    return Embeddings(values, labels=rng.integers(classes, size=count))


class Wrapped(nn.Module):
    """The same head as a network with a layer before it, for which autograd is needed."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Identity(), layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.embedding(x))


@pytest.mark.parametrize(("classes", "width"), [(3, 20), (4, 5), (9, 6), (2, 2)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("labels", ["true", "prediction"])
def test_descriptors_equal_autograd(classes: int, width: int, bias: bool, labels: str) -> None:
    layer, vectors = head(classes, width, bias=bias), data(30, width, classes)
    closed = describe(layer, vectors, labels=labels, progress=False)
    slow = describe(Wrapped(layer), vectors, layers=("embedding",), labels=labels, progress=False)
    assert closed.layers == ("embedding",) and closed.widths == (width,)
    for name in ("features", "scores", "prediction", "margin", "label", "index"):
        found, expected = getattr(closed, name), getattr(slow, name)
        assert torch.allclose(found.double(), expected.double(), rtol=1e-9, atol=1e-9), name
    assert not closed.scores.requires_grad


@pytest.mark.parametrize(("classes", "width"), [(3, 20), (4, 5), (9, 6), (2, 8), (40, 200)])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_kernels_of_reduced_scores_equal_those_of_autograd(
    classes: int, width: int, kernel: str, dtype: torch.dtype, tolerance: float
) -> None:
    """The shorter vectors have the same inner products, and the norm of all channels."""
    layer = head(classes, width, dtype)
    a, b = data(12, width, classes, 1), data(25, width, classes, 2)
    config = configure(layer, None, a, Reader(progress=False), None, "auto", reduce=True)
    slow = DescriberConfig(Wrapped(layer).double(), ("embedding",), Reader(progress=False))
    closed, expected = ([points(c, x) for x in (a, b)] for c in (config, slow))
    if classes + 1 < width:
        assert closed[0].scores.shape[1] == classes + 1
    found, wanted = (similarity(standardize(a), standardize(b), kernel).double() for a, b in (closed, expected))
    largest = {"fisher": width**2, "sum": 2 * width, "features": width}[kernel]
    assert (found - wanted).abs().max() <= tolerance * largest
    assert wanted.abs().max() > 0.05 * largest


def points(config: DescriberConfig, vectors: Embeddings) -> Descriptors:
    with config.open() as describer:
        return concatenate(describer.batches(vectors, None, given))


def test_scores_of_a_confident_head_keep_their_direction() -> None:
    layer = head(4, 12, torch.float32)
    with torch.no_grad():
        layer.weight *= 30
    vectors = data(20, 12, 4)
    config = configure(layer, None, vectors, Reader(progress=False), None, "auto", reduce=True)
    with config.open() as describer:
        found = standardize(concatenate(describer.batches(vectors, None, predicted)))
    norms = found.scores[0].square().sum(dim=1)
    assert ((norms - 12).abs().lt(1e-3) | norms.eq(0)).all() and (norms > 0).any()


def test_the_reduced_head_has_centered_rows() -> None:
    weight = head(5, 30).weight.detach()
    found = reduced(weight)
    centered = weight - weight.mean(dim=1, keepdim=True)
    residual = torch.randn(6, 5, dtype=torch.float64)
    residual -= residual.mean(dim=1, keepdim=True)
    assert found.shape == (5, 6) and float((residual @ found).sum(dim=1).abs().max()) < 1e-12
    expected = residual @ centered @ centered.T @ residual.T
    assert torch.allclose(residual @ found @ found.T @ residual.T, expected, rtol=1e-10)


def test_contrasts_are_orthonormal_and_add_up_to_zero() -> None:
    rows = contrasts(6)
    assert torch.allclose(rows @ rows.T, torch.eye(6).double()) and float(rows.sum(dim=1).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("model", "is_linear"),
    [
        (nn.Linear(3, 2), True),
        (nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(3, 2)), True),
        (nn.Sequential(nn.Sequential(nn.Identity(), nn.Linear(3, 2))), True),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), False),
        (nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), False),
        (nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1)), False),
        (nn.Sequential(), False),
        (Wrapped(nn.Linear(3, 2)), False),
    ],
)
def test_which_models_are_linear_heads(model: nn.Module, is_linear: bool) -> None:
    assert (linear_layer(model) is not None) == is_linear


def test_a_head_of_another_width_and_distortions_are_named() -> None:
    with pytest.raises(DataError, match=r"embeddings of width 4, not of shape \(6, 5\)"):
        LinearPass.of(head(3, 4), None, reduce=True)(torch.ones(6, 5))
    with pytest.raises(ArgumentError, match="'trace' distorts images"):
        describe(head(3, 4), data(5, 4, 3), labels="trace")


def test_a_head_in_half_precision_computes_in_float32() -> None:
    layer, vectors = head(3, 20, torch.float32), data(9, 20, 3)
    half = nn.Linear(20, 3, dtype=torch.bfloat16)
    half.load_state_dict(layer.state_dict())
    found: Any = describe(half, vectors, labels="true", progress=False)
    assert found.scores.dtype == torch.float32
    assert torch.allclose(found.scores, describe(half.float(), vectors, labels="true", progress=False).scores)


def test_a_head_that_is_not_trained_returns_its_biases() -> None:
    head, vectors = nn.Linear(6, 3), torch.randn(4, 6)
    nn.init.zeros_(head.weight)
    view = LinearPass.of(head, None, reduce=False)(vectors)
    assert torch.equal(view.logits_NC, head(vectors)) and not view.logits_NC.requires_grad
    assert torch.equal(view.features_ND, vectors)
