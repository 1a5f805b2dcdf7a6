"""Find near-copies of images, such as re-encoded or resized files, by the cosine similarity of their embeddings."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.errors import DataError

THRESHOLD = 0.9
"""Two images are near-copies if the cosine similarity of their embeddings, less the mean, is at least this large."""
PROJECTED = 64
"""Number of directions in which all pairs are compared before the whole embeddings of the closest are."""
BLOCK = 2048
"""Number of rows that are compared with all others at a time."""
SAMPLED = 5_000
"""Number of rows from which the directions are computed."""
MOST_PAIRS = 200
"""If there are more near-copies than this many per row, the embeddings do not tell the images apart."""


def near_copy_pairs(values: Float[Tensor, "N D"] | np.ndarray, threshold: float = THRESHOLD) -> Int[Tensor, "P 2"]:
    """Returns all pairs of rows (first < second) that are near-copies.

    The mean of all rows is subtracted first, because all embeddings of many models point in a similar direction. The
    result is exact: a projection to orthogonal directions cannot increase the distance of two rows, so pairs whose
    projections are too far apart need no further comparison. Rows that are all zero are never near-copies.
    """
    table = torch.as_tensor(values).float()
    if len(table) < 2:
        return torch.empty(0, 2, dtype=torch.long)
    used = (table.abs().amax(dim=1) > 0).nonzero()[:, 0]
    unit_ND = torch.nn.functional.normalize(table[used] - table[used].mean(dim=0), dim=1)
    return used[_close_pairs(unit_ND, threshold)]


def _close_pairs(unit_ND: Tensor, threshold: float) -> Int[Tensor, "P 2"]:
    """Returns the pairs of rows whose inner product is at least the threshold."""
    low_NK = unit_ND @ _directions(unit_ND)
    # |a - b|² = |a|² + |b|² - 2 a·b is at most 2 - 2 × threshold for near-copies, and not larger for their projections.
    limit, half_N = 1 - threshold + 1e-5, low_NK.square().sum(dim=1) / 2
    found, count = [torch.empty(0, 2, dtype=torch.long)], 0
    for start in range(0, len(unit_ND), BLOCK):
        rows = slice(start, start + BLOCK)
        distance = torch.addmm(half_N[start:], low_NK[rows], low_NK[start:].T, alpha=-1)  # half of |a - b|²
        distance += half_N[rows, None]
        near = (distance <= limit).nonzero() + start
        near = near[near[:, 0] < near[:, 1]]
        for some in near.split(2**20):
            is_close = torch.einsum("pd,pd->p", unit_ND[some[:, 0]], unit_ND[some[:, 1]]) >= threshold
            found.append(some[is_close])
            count += int(is_close.sum())
        if count > MOST_PAIRS * len(unit_ND):
            raise DataError(
                f"More than {MOST_PAIRS} × {len(unit_ND):,} pairs of images are near-copies, so the embeddings do not "
                "tell the images apart. Use another model."
            )
    return torch.cat(found)


def _directions(unit_ND: Tensor) -> Tensor:
    """Returns orthonormal directions (D, K) in which the rows differ most."""
    sample = (
        unit_ND[torch.linspace(0, len(unit_ND) - 1, min(SAMPLED, len(unit_ND))).long()] if len(unit_ND) else unit_ND
    )
    centered = sample - sample.mean(dim=0)
    _, vectors = torch.linalg.eigh(centered.T.double() @ centered.double())
    return vectors[:, -PROJECTED:].float()


def group_pairs(pairs: Int[Tensor, "P 2"]) -> list[list[int]]:
    """Returns groups of rows that are linked by pairs, in ascending order; rows without a pair are left out."""
    leader: dict[int, int] = {}

    def find(row: int) -> int:
        while leader.setdefault(row, row) != row:
            leader[row] = row = leader[leader[row]]
        return row

    for a, b in pairs.tolist():
        low, high = sorted((find(a), find(b)))
        leader[high] = low
    groups: dict[int, list[int]] = {}
    for row in sorted(leader):
        groups.setdefault(find(row), []).append(row)
    return list(groups.values())
