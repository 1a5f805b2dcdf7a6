"""A few failures that stand for all."""

import torch
from jaxtyping import Int
from torch import Tensor

from rarefish.kernels import Standardized, similarity


def k_center(
    points: Standardized, count: int, kernel: str = "fisher", generator: torch.Generator | None = None
) -> Int[Tensor, " count"]:
    """Rows of `count` points that cover all others, in the order found: greedy k-center with the kernel.

    The first is drawn; each next one is the point least alike to all chosen ones. Nothing leaves the device on the
    way: the row of the next center stays a tensor.
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
