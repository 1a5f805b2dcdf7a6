"""Centers: a few failures that represent all of them."""

import torch
from jaxtyping import Int
from torch import Tensor

from rarefish.kernels import Standardized, similarity


def k_center(
    points: Standardized, count: int, kernel: str = "fisher", generator: torch.Generator | None = None
) -> Int[Tensor, " count"]:
    """Returns the rows of `count` points that cover all others, in the order chosen, by greedy k-center.

    The first is drawn at random; each next one is the point least similar to those already chosen. Rows stay tensors,
    so that the device is never synchronized.
    """
    if count >= len(points):
        return torch.arange(len(points), device=points.features[0].device)
    generator = generator or torch.Generator().manual_seed(0)
    row = torch.randint(len(points), (1,), generator=generator, device=generator.device).to(points.features[0].device)
    rows = [row]
    closest_N = similarity(points, points[row], kernel).squeeze(1).index_fill(0, row, torch.inf)
    for _ in range(count - 1):
        row = closest_N.argmin(dim=0, keepdim=True)
        closest_N = torch.maximum(closest_N, similarity(points, points[row], kernel).squeeze(1))
        closest_N = closest_N.index_fill(0, row, torch.inf)
        rows.append(row)
    return torch.cat(rows)
