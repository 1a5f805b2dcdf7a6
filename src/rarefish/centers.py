"""Choose a few points that represent many: centers of the failures, and pool images that cover weighted targets."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from rarefish.kernels import Standardized, similarity


def k_center(
    points: Standardized, count: int, kernel: str = "fisher", generator: torch.Generator | None = None
) -> Int[Tensor, " count"]:
    """Returns the rows of `count` points that cover all others, in the order chosen, by greedy k-center.

    The first is random; each further point is the one least similar to those already chosen. Rows stay tensors, so that
    the device is never synchronized.
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


WIDTH = 0.8
"""Difference of cosine similarity over which the similarity for coverage falls by a factor of e."""
AT_ONCE = 64
"""Number of candidates whose gains are updated together."""
AHEAD = 192
"""Number of candidates whose similarities are computed together, before most of them are needed."""
BLOCK = 256
"""Number of rows of the table of similarities that are computed together."""


def directions(
    features: Float[Tensor, "N D"], mean: Float[Tensor, " D"], scale: Float[Tensor, " D"]
) -> Float[Tensor, "N D"]:
    """Returns standardized features scaled to length 1."""
    return normalize((features.float() - mean) / scale, dim=1)


def closeness(a: Float[Tensor, "A D"], b: Float[Tensor, "B D"]) -> Float[Tensor, "A B"]:
    """Returns a similarity between 0 and 1 of unit vectors, which decreases exponentially with their distance."""
    return (a @ b.T).sub_(1).div_(WIDTH).exp_()


def gains(
    points: Float[Tensor, "N D"], weight: Float[Tensor, " N"], covered: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Returns how much each point would add to the weighted sum of the coverage.

    The table of similarities is not kept, because it would take more memory than everything else. It is symmetric, so
    only one half is computed.
    """
    gain_N = torch.zeros_like(weight)
    for first in range(0, len(points), BLOCK):
        last = first + BLOCK
        near_BN = closeness(points[first:last], points[first:])
        gain_N[last:] += weight[first:last] @ (near_BN[:, BLOCK:] - covered[first:last, None]).clamp_min_(0)
        gain_N[first:last] += near_BN.sub_(covered[first:]).clamp_min_(0) @ weight[first:]
    return gain_N


def cover(
    points: Float[Tensor, "N D"], weight: Float[Tensor, " N"], known: Float[Tensor, "L D"], count: int
) -> Int[Tensor, " count"]:
    """Returns the rows of `count` points that cover the weighted points best, given known points, in greedy order.

    A point is covered by the closest known or chosen one. Each choice is the point that increases the weighted sum of
    the coverage most. Since gains can only decrease, only the largest ones are updated (Minoux, 1978).
    """
    covered_N = torch.zeros_like(weight)
    for some in known.split(BLOCK) if len(known) else ():
        covered_N = torch.maximum(covered_N, closeness(some, points).amax(dim=0))
    gain_N = gains(points, weight, covered_N)
    rows: list[int] = []
    near: dict[int, Tensor] = {}  # similarities of the candidates so far, which are few
    while len(rows) < count:
        ahead = gain_N.topk(min(AHEAD, len(points))).indices
        some = ahead[:AT_ONCE]
        if any(row not in near for row in some.tolist()):
            new = [row for row in ahead.tolist() if row not in near]
            near.update(zip(new, closeness(points[new], points), strict=True))
        near_SN = torch.stack([near[row] for row in some.tolist()])
        gain_N[some] = gain_N[some].clamp_max((near_SN - covered_N).clamp_min_(0) @ weight)
        is_best = gain_N[some] == gain_N.max()
        if not is_best.any():
            continue
        row = int(some[is_best].min())  # points with equal gains would otherwise be updated forever
        rows.append(row)
        covered_N = torch.maximum(covered_N, near[row])
        gain_N[row] = -torch.inf
    return torch.tensor(rows, dtype=torch.long, device=points.device)
