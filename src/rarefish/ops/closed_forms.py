"""Descriptors of embeddings with a linear head, in closed form: without autograd and without copies.

The features of an embedding z are z itself. With p = softmax(W z + b) and the one-hot label y, the gradient of the
cross-entropy with respect to z is g = (p - y) W. A kernel needs only inner products of standardized scores. Centering g
over its D channels is the same as centering each row of W, so with centered rows,

    g · g' = (p - y) W Wᵀ (p' - y')ᵀ = h · h',  where h = (p - y) F and F Fᵀ = W Wᵀ.

F has only as many columns as there are classes, so for C < D, h replaces g. A rotation makes the mean of h zero, as
standardization expects.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from rarefish.errors import DataError
from rarefish.features import HALVES, View

LAYER = "embedding"
"""Name of the layer of embeddings."""


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """Returns the linear layer that alone maps vectors to logits, or None if the model has other layers.

    Layers that change nothing in evaluation mode, such as dropout, do not count.
    """
    if isinstance(model, nn.Linear):
        return model
    if not isinstance(model, nn.Sequential):
        return None
    layers = [layer for layer in model if not isinstance(layer, (nn.Identity, nn.Flatten, nn.Dropout))]
    return linear_layer(layers[0]) if len(layers) == 1 else None


@dataclass(frozen=True)
class LinearView(View):
    """The logits of embeddings, and their Fisher scores in closed form."""

    projection: Tensor | None = None
    """Matrix (C, columns) that maps p - y to the scores."""

    def scores(self, label_N: Tensor) -> Tensor:
        """Returns the Fisher scores, or vectors with the same inner products after standardization."""
        assert self.projection is not None
        residual_NC = self.logits_NC.softmax(dim=1)
        residual_NC[torch.arange(len(label_N), device=label_N.device), label_N] -= 1
        return residual_NC @ self.projection

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.features_ND.shape[1],)

    @property
    def score_widths(self) -> tuple[int, ...]:
        assert self.projection is not None
        return (self.projection.shape[1],)


@dataclass(frozen=True)
class LinearPass:
    """Runs batches of embeddings through a linear head."""

    weight: Float[Tensor, "C D"]
    bias: Float[Tensor, " C"]
    projection: Float[Tensor, "C columns"]
    is_trained: bool = True
    """Whether there are weights other than 0; otherwise, the logits are the biases."""

    @staticmethod
    def of(head: nn.Linear, device: torch.device | str | None, *, reduce: bool) -> "LinearPass":
        """Returns the pass of a head; with `reduce`, scores have one column per class and one more, if these are fewer.

        Args:
            head: The linear layer.
            device: Where to compute; None means where the head is.
            reduce: Whether only the inner products of standardized scores are needed.
        """
        weight = head.weight.detach()
        weight = weight.float() if weight.dtype in HALVES else weight
        bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach().to(weight)
        projection = reduced(weight) if reduce and len(weight) + 1 < weight.shape[1] else weight
        device = weight.device if device is None else torch.device(device)
        return LinearPass(weight.to(device), bias.to(device), projection.to(device), bool(weight.any()))

    @property
    def watcher(self) -> "LinearPass":
        return self

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def __call__(self, vectors: Tensor) -> LinearView:
        if vectors.ndim != 2 or vectors.shape[1] != self.weight.shape[1]:
            raise DataError(
                f"The head needs embeddings of width {self.weight.shape[1]}, not of shape {tuple(vectors.shape)}."
            )
        vectors_ND = vectors.to(self.weight)
        with torch.no_grad():
            logits_NC = (
                functional.linear(vectors_ND, self.weight, self.bias)
                if self.is_trained
                else self.bias.expand(len(vectors_ND), -1)
            )
        return LinearView(vectors_ND, logits_NC, (), vectors_ND, self.projection)


def reduced(weight: Float[Tensor, "C D"]) -> Float[Tensor, "C columns"]:
    """Returns a matrix with C + 1 columns for which h = (p - y) F has the inner products of the centered scores.

    The entries of h add up to 0.
    """
    centered = weight.double() - weight.double().mean(dim=1, keepdim=True)
    centered = centered - centered.mean(dim=0)  # p - y adds up to 0, so what the classes have in common has no effect
    values, vectors = torch.linalg.eigh(centered @ centered.T)
    factor = vectors * values.clamp_min(0).sqrt()
    return (factor @ contrasts(len(weight)).to(factor)).to(weight)


def contrasts(count: int) -> Float[Tensor, "C columns"]:
    """Returns `count` orthonormal rows of length `count + 1`, each of which adds up to 0 (Helmert contrasts)."""
    rows = torch.zeros(count, count + 1, dtype=torch.float64)
    for k in range(1, count + 1):
        rows[k - 1, :k] = 1
        rows[k - 1, k] = -k
        rows[k - 1] /= math.sqrt(k * (k + 1))
    return rows
