"""How alike two images are: three kernels over standardized features and Fisher scores."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.descriptors import Descriptors, Rows

KERNELS: dict[str, Callable[[list[Tensor], list[Tensor]], Tensor]] = {
    "fisher": lambda z, g: _total(z_j * g_j for z_j, g_j in zip(z, g, strict=True)),
    "sum": lambda z, g: _total(z) + _total(g),
    "features": lambda z, g: _total(z),
}
"""From each layer's product of features z and of scores g to one similarity.

`fisher` is the paper's practical Fisher kernel: (g zᵀ)·(g' z'ᵀ) = (z·z')(g·g') with the identity in place of the
inverse information. `sum` is what the paper's published code computes, `features` its baseline without scores (PCC).
"""


@dataclass(frozen=True)
class Standardized:
    """Features and scores a kernel can compare: each image's channels of each layer have mean 0 and variance 1."""

    features: tuple[Float[Tensor, "N _"], ...]
    scores: tuple[Float[Tensor, "N _"], ...]

    def __len__(self) -> int:
        return len(self.features[0])

    def __getitem__(self, rows: Rows) -> "Standardized":
        return Standardized(tuple(z[rows] for z in self.features), tuple(g[rows] for g in self.scores))


def standardize(described: Descriptors) -> Standardized:
    """The descriptors made ready for a kernel, layer by layer."""
    return Standardized(
        standardize_layers(described.features, described.widths),
        standardize_layers(described.scores, described.widths) if described.scores.shape[1] else (),
    )


def standardize_layers(values_ND: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(standardize_rows(values_NL) for values_NL in values_ND.split(widths, dim=1))


def standardize_rows(values: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
    """Each row with mean 0 and variance 1, so that an inner product is L times a correlation; a flat row becomes 0.

    Rows are first brought to a largest entry of 1: the scores of a sure model are so small that their squares vanish.
    """
    tiny = torch.finfo(values.dtype).tiny
    scaled = values / values.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    centered = scaled - scaled.mean(dim=1, keepdim=True)
    deviation = centered.square().mean(dim=1, keepdim=True).sqrt()
    # What rounding leaves of a constant row is not a direction.
    is_flat = deviation <= 8 * torch.finfo(values.dtype).eps
    return torch.where(is_flat, 0.0, centered / deviation.clamp_min(tiny))


def similarity(a: Standardized, b: Standardized, kernel: str = "fisher") -> Float[Tensor, "A B"]:
    """The kernel between all of a and all of b; larger is more alike."""
    products_z = [z_a @ z_b.T for z_a, z_b in zip(a.features, b.features, strict=True)]
    products_g = [g_a @ g_b.T for g_a, g_b in zip(a.scores, b.scores, strict=True)] if needs_scores(kernel) else []
    return KERNELS[kernel](products_z, products_g)


def _total(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def needs_scores(kernel: str) -> bool:
    return kernel != "features"
