"""Similarity of images: three kernels over standardized features and Fisher scores."""

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
"""Kernel name -> function from the per-layer products of features z and of scores g to the similarity.

`fisher` is the paper's practical Fisher kernel: (g zᵀ)·(g' z'ᵀ) = (z·z')(g·g') with the identity in place of the
inverse information. `sum` is what the paper's published code computes, `features` its baseline without scores (PCC).
"""


@dataclass(frozen=True)
class Standardized:
    """Features and scores as the kernels take them: each row of each layer has mean 0 and variance 1."""

    features: tuple[Float[Tensor, "N _"], ...]
    scores: tuple[Float[Tensor, "N _"], ...]

    def __len__(self) -> int:
        return len(self.features[0])

    def __getitem__(self, rows: Rows) -> "Standardized":
        return Standardized(tuple(z[rows] for z in self.features), tuple(g[rows] for g in self.scores))


def standardize(described: Descriptors) -> Standardized:
    """Returns the descriptors standardized layer by layer."""
    return Standardized(
        standardize_layers(described.features, described.widths),
        standardize_layers(described.scores, described.widths) if described.scores.shape[1] else (),
    )


def standardize_layers(values_ND: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Splits the columns into layers and standardizes the rows of each."""
    return tuple(standardize_rows(values_NL) for values_NL in values_ND.split(widths, dim=1))


def standardize_rows(values: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
    """Returns rows with mean 0 and variance 1, whose inner product is L times a correlation; constant rows become 0.

    Rows are first scaled to a largest entry of 1, since the scores of a confident model are so small that their squares
    underflow.
    """
    tiny = torch.finfo(values.dtype).tiny
    scaled = values / values.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    centered = scaled - scaled.mean(dim=1, keepdim=True)
    deviation = centered.square().mean(dim=1, keepdim=True).sqrt()
    # What rounding leaves of a constant row has no meaningful direction.
    is_constant = deviation <= 8 * torch.finfo(values.dtype).eps
    return torch.where(is_constant, 0.0, centered / deviation.clamp_min(tiny))


def similarity(a: Standardized, b: Standardized, kernel: str = "fisher") -> Float[Tensor, "A B"]:
    """Returns the kernel between all rows of `a` and all rows of `b`; larger means more similar."""
    products_z = [z_a @ z_b.T for z_a, z_b in zip(a.features, b.features, strict=True)]
    products_g = [g_a @ g_b.T for g_a, g_b in zip(a.scores, b.scores, strict=True)] if needs_scores(kernel) else []
    return KERNELS[kernel](products_z, products_g)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def needs_scores(kernel: str) -> bool:
    """Whether the kernel uses Fisher scores."""
    return kernel != "features"
