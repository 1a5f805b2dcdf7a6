"""Descriptors and chances as the GPU's kernels read them."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.kernels import Standardized, needs_scores

WIDE = 128
"""A layer's channels are filled up with zeros to a multiple of this."""


@dataclass(frozen=True)
class Chances:
    """How likely each pool image is of each class, and the numbers of `matching.weigh`."""

    posterior_NC: Float[Tensor, "N C"]
    classes_K: Int[Tensor, " K"]
    full: float
    doubtful: float
    largest: float
    last: float


@dataclass(frozen=True)
class Laid:
    """Standardized points as the kernels read them: features and scores of the first layer, of the second …"""

    rows: Float[Tensor, "N W"]
    ends: tuple[int, ...]
    """Where each of these ends; what fills it up is 0."""
    is_product: bool
    """Whether features meet scores layer by layer, or all is one inner product."""

    def __len__(self) -> int:
        return len(self.rows)


def lay_out(points: Standardized, kernel: str = "fisher", dtype: torch.dtype = torch.float16) -> Laid:
    """Ready for the kernels; standardized values never leave the range of 16 bits."""
    if kernel == "fisher":
        parts = [part for layer in zip(points.features, points.scores, strict=True) for part in layer]
    else:
        parts = [*points.features, *(points.scores if needs_scores(kernel) else ())]
    widths = [-(-part.shape[1] // WIDE) * WIDE for part in parts]
    rows = parts[0].new_zeros(len(points), sum(widths), dtype=dtype)
    for part, place in zip(parts, rows.split(widths, dim=1), strict=True):
        place[:, : part.shape[1]] = part
    is_product = kernel == "fisher"
    return Laid(rows, tuple(accumulate(widths)) if is_product else (sum(widths),), is_product)


Weights = tuple[Any, ...]
"""Chances as the kernels take them."""


def to_weights(chances: Chances | None, pool: Laid) -> Weights:
    if chances is None:
        return (pool.rows, pool.rows, 0.0, 0.0, 0.0, 0.0)
    # By class: then the threads that look at one center read neighbours.
    posterior_CN = chances.posterior_NC.float().T.contiguous()
    classes = chances.classes_K.to(posterior_CN.device, torch.int32)
    return (posterior_CN, classes, 1 / chances.full, chances.doubtful, 1 / chances.largest, chances.last)
