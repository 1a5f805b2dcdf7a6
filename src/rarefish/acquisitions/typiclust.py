"""Typical images of clusters that have no labels (TypiClust: Hacohen, Dekel and Weinshall, 2022)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.acquisitions.diversity import known_and_unlabeled
from rarefish.acquisitions.interface import Choice, Situation

MAX_CLUSTERS = 500
MIN_CLUSTER_SIZE = 5
NUM_NEIGHBORS = 20
KMEANS_STEPS = 25
STABLE = 1e-3
"""K-means ends when at most this fraction of the points changes its cluster."""


def choose_typical(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses the most typical image of each cluster, from the clusters with the fewest labels and the most images.

    There are as many clusters as labels after this round, up to a limit. The features are those before the classifier,
    normalized to length 1. If the model is trained on the validation set, its images count as labeled.
    """
    features_NF, _, num_labeled = known_and_unlabeled(situation)
    features_NF = torch.nn.functional.normalize(features_NF, dim=1)
    cluster_N = k_means(features_NF, min(num_labeled + budget, MAX_CLUSTERS, len(features_NF)), generator).cpu()
    order = rank_clusters(cluster_N, num_labeled)
    free = {c: (cluster_N[num_labeled:] == c).nonzero().squeeze(1).add(num_labeled).tolist() for c in order}
    rows: list[int] = []
    while len(rows) < budget:
        for c in order:
            if free[c] and len(rows) < budget:
                best = free[c][int(typicality(features_NF[free[c]]).argmax())]
                free[c].remove(best)
                rows.append(best)
        if not any(free.values()) and len(rows) < budget:  # all remaining images are in clusters below the minimum size
            rest = [row for row in range(num_labeled, len(features_NF)) if row not in set(rows)]
            rows += rest[: budget - len(rows)]
    return Choice([situation.unlabeled[row - num_labeled] for row in rows], passes=len(features_NF))


def rank_clusters(cluster_N: Int[Tensor, " N"], num_labeled: int) -> list[int]:
    """Returns the clusters of at least the minimum size, ordered by number of labels and then by decreasing size.

    The first `num_labeled` rows are the labeled images.
    """
    num_clusters = int(cluster_N.max()) + 1
    size = cluster_N.bincount(minlength=num_clusters).tolist()
    labels = cluster_N[:num_labeled].bincount(minlength=num_clusters).tolist()
    large = [c for c in range(num_clusters) if size[c] >= MIN_CLUSTER_SIZE] or [
        c for c in range(num_clusters) if size[c]
    ]
    return sorted(large, key=lambda c: (labels[c], -size[c]))


def typicality(points: Float[Tensor, "N F"]) -> Float[Tensor, " N"]:
    """Returns the inverse mean distance to the 20 nearest neighbors, or to half of the points if that is fewer."""
    count = max(1, min(NUM_NEIGHBORS, len(points) // 2))
    if len(points) == 1:
        return torch.ones(1, device=points.device)
    nearest = torch.cdist(points, points).topk(count + 1, dim=1, largest=False).values[:, 1:]
    return 1 / (nearest.mean(dim=1) + 1e-5)


def k_means(points: Float[Tensor, "N F"], count: int, generator: torch.Generator) -> Int[Tensor, " N"]:
    """Returns the cluster of each point, by k-means++ and Lloyd's algorithm. An empty cluster keeps its center.

    Seeding does not synchronize with the device: each draw is a position in the cumulative sum of squared distances.
    |a - b|² = |a|² + |b|² - 2 a·b, so that all steps are matrix products.
    """
    draws = torch.rand(count, dtype=torch.float64, generator=generator).to(points.device)
    squares_N = torch.einsum("nf,nf->n", points, points)  # without a copy of the points
    distance_N, rows = torch.ones_like(squares_N), []
    for number in range(count):
        # If every point is already a center, all distances are about 0, and some point is drawn again.
        sums_N = distance_N.double().cumsum(dim=0)
        row = torch.searchsorted(sums_N, draws[number] * sums_N[-1:], right=True).clamp_max(len(points) - 1)
        rows.append(row)
        to_row_N = torch.addmv(squares_N + squares_N[row], points, points[row].squeeze(0), alpha=-2).clamp_min_(0)
        to_row_N.index_fill_(0, row, 0)
        distance_N = torch.minimum(distance_N, to_row_N) if number else to_row_N
    centers, cluster_N = points[torch.cat(rows)], torch.zeros(len(points), dtype=torch.long, device=points.device)
    for _ in range(KMEANS_STEPS):
        # The square of the point is the same for all centers.
        nearest_N = torch.addmm(centers.square().sum(dim=1), points, centers.T, alpha=-2).argmin(dim=1)
        if int((nearest_N != cluster_N).sum()) <= STABLE * len(points):
            return nearest_N
        cluster_N = nearest_N
        sums = torch.zeros_like(centers).index_add_(0, cluster_N, points)
        sizes = cluster_N.bincount(minlength=count)[:, None]
        centers = torch.where(sizes > 0, sums / sizes.clamp_min(1), centers)
    return cluster_N
