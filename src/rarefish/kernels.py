"""Similarity of images: three kernels over standardized features and Fisher scores."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.descriptors import Descriptors, Rows

KERNELS: dict[str, Callable[[list[Tensor], list[Tensor]], Tensor]] = {
    "fisher": lambda z, g: _sum(z_j * g_j for z_j, g_j in zip(z, g, strict=True)),
    "sum": lambda z, g: _sum(z) + _sum(g),
    "features": lambda z, g: _sum(z),
}
"""For each kernel, the function that maps the per-layer products of features z and of scores g to the similarity.

`fisher` is the paper's practical Fisher kernel: (g zᵀ)·(g' z'ᵀ) = (z·z')(g·g') with the identity instead of the
inverse information. `sum` is what the paper's published code computes; `features` is its baseline without scores (PCC).
"""


@dataclass(frozen=True)
class Standardized:
    """Features and scores in the form that kernels need: each row of each layer has mean 0 and variance 1."""

    features: tuple[Float[Tensor, "N _"], ...]
    scores: tuple[Float[Tensor, "N _"], ...]

    def __len__(self) -> int:
        return len(self.features[0])

    def __getitem__(self, rows: Rows) -> "Standardized":
        return Standardized(tuple(z[rows] for z in self.features), tuple(g[rows] for g in self.scores))


def standardize(described: Descriptors) -> Standardized:
    """Returns the descriptors standardized layer by layer."""
    features = standardize_layers(described.features, described.widths)
    if not described.scores.shape[1]:
        return Standardized(features, ())
    own_widths = described.score_widths or described.widths
    scores = standardize_layers(described.scores, own_widths)
    # Shorter scores get the norm that they would have with all channels.
    lengths = [math.sqrt(width / own) for width, own in zip(described.widths, own_widths, strict=True)]
    return Standardized(features, tuple(g if a == 1 else g * a for g, a in zip(scores, lengths, strict=True)))


def standardize_layers(values_ND: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Returns the columns split into layers, with the rows of each layer standardized."""
    return tuple(standardize_rows(values_NL) for values_NL in values_ND.split(widths, dim=1))


def standardize_rows(values: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
    """Returns rows with mean 0 and variance 1, whose inner product is L times a correlation; constant rows become 0.

    Rows are first scaled to a largest entry of 1, because the scores of a confident model are so small that their
    squares underflow.
    """
    if not values.is_cuda and (found := _standardize_plain_rows(values)) is not None:
        return found
    tiny = torch.finfo(values.dtype).tiny
    scaled = values / values.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    centered = scaled - scaled.mean(dim=1, keepdim=True)
    deviation = centered.square().mean(dim=1, keepdim=True).sqrt()
    # What remains of a constant row after rounding has no meaningful direction.
    is_constant = deviation <= 8 * torch.finfo(values.dtype).eps
    return torch.where(is_constant, 0.0, centered / deviation.clamp_min(tiny))


def _standardize_plain_rows(values: Float[Tensor, "N L"]) -> Float[Tensor, "N L"] | None:
    """Returns the standardized rows with fewer passes over memory, or None if a row needs the careful computation."""
    limits = torch.finfo(values.dtype)
    mean = values.mean(dim=1, keepdim=True)
    centered = values - mean
    deviation = torch.linalg.vector_norm(centered, dim=1, keepdim=True) / math.sqrt(values.shape[1])
    # No entry is larger than this, so that a deviation above it cannot be due to rounding.
    largest = mean.abs() + math.sqrt(values.shape[1]) * deviation
    is_plain = (deviation > 8 * limits.eps * largest) & (deviation > limits.tiny**0.25) & (largest < limits.max**0.25)
    return centered.div_(deviation) if bool(is_plain.all()) else None


def similarity(a: Standardized, b: Standardized, kernel: str = "fisher") -> Float[Tensor, "A B"]:
    """Returns the kernel between all rows of `a` and all rows of `b`; larger means more similar."""
    products_z = [z_a @ z_b.T for z_a, z_b in zip(a.features, b.features, strict=True)]
    products_g = [g_a @ g_b.T for g_a, g_b in zip(a.scores, b.scores, strict=True)] if needs_scores(kernel) else []
    return KERNELS[kernel](products_z, products_g)


def largest_similarity(num_channels: int, kernel: str) -> int:
    """Returns an upper bound of the kernel; the inner product of L standardized channels is at most L."""
    return {"fisher": num_channels**2, "sum": 2 * num_channels, "features": num_channels}[kernel]


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def needs_scores(kernel: str) -> bool:
    """Returns whether the kernel uses Fisher scores."""
    return kernel != "features"
