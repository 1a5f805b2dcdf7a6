"""Typical images of clusters that have no label yet (TypiClust: Hacohen, Dekel and Weinshall, 2022)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Choice, Situation

MOST_CLUSTERS = 500
SMALLEST_CLUSTER = 5
NUM_NEIGHBOURS = 20
KMEANS_STEPS = 25


def choose_typical(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """From as many clusters as there will be labels, the ones with fewest labels and most images first, the image that
    is closest to its neighbours; features are those below the classifier, of length 1.
    """
    everything = [*situation.labeled, *situation.unlabeled]
    features_NF, _ = last_features(situation, everything)
    features_NF = torch.nn.functional.normalize(features_NF, dim=1)
    num_labeled = len(situation.labeled)
    cluster_N = k_means(features_NF, min(num_labeled + budget, MOST_CLUSTERS, len(everything)), generator).cpu()
    order = rank_clusters(cluster_N, num_labeled)
    free = {c: (cluster_N[num_labeled:] == c).nonzero().squeeze(1).add(num_labeled).tolist() for c in order}
    rows: list[int] = []
    while len(rows) < budget:
        for c in order:
            if free[c] and len(rows) < budget:
                best = free[c][int(typicality(features_NF[free[c]]).argmax())]
                free[c].remove(best)
                rows.append(best)
        if not any(free.values()) and len(rows) < budget:  # only clusters too small to count are left
            rest = [row for row in range(num_labeled, len(everything)) if row not in set(rows)]
            rows += rest[: budget - len(rows)]
    return Choice([everything[row] for row in rows], passes=len(everything))


def rank_clusters(cluster_N: Int[Tensor, " N"], num_labeled: int) -> list[int]:
    """Clusters that are large enough: fewest labels first (the first rows are labeled), among equals the largest."""
    num_clusters = int(cluster_N.max()) + 1
    size = cluster_N.bincount(minlength=num_clusters).tolist()
    labels = cluster_N[:num_labeled].bincount(minlength=num_clusters).tolist()
    large = [c for c in range(num_clusters) if size[c] >= SMALLEST_CLUSTER] or [
        c for c in range(num_clusters) if size[c]
    ]
    return sorted(large, key=lambda c: (labels[c], -size[c]))


def typicality(points: Float[Tensor, "N F"]) -> Float[Tensor, " N"]:
    """One over the mean distance to the nearest neighbours: 20 of them, or half of the points where they are fewer."""
    count = max(1, min(NUM_NEIGHBOURS, len(points) // 2))
    if len(points) == 1:
        return torch.ones(1, device=points.device)
    nearest = torch.cdist(points, points).topk(count + 1, dim=1, largest=False).values[:, 1:]
    return 1 / (nearest.mean(dim=1) + 1e-5)


def k_means(points: Float[Tensor, "N F"], count: int, generator: torch.Generator) -> Int[Tensor, " N"]:
    """The cluster of each point: Lloyd's steps from centers drawn by k-means++; an empty cluster keeps its center.

    No step waits for the points' device: a draw is a place in the running sum of the squared distances.
    """
    draws = torch.rand(count, dtype=torch.float64, generator=generator).to(points.device)
    distance_N, rows = torch.ones_like(points[:, 0]), []
    for number in range(count):
        # Where all points are centers already, every distance is 0, and so is every place: the last point, again.
        sums_N = distance_N.double().cumsum(dim=0)
        row = torch.searchsorted(sums_N, draws[number] * sums_N[-1:], right=True).clamp_max(len(points) - 1)
        rows.append(row)
        apart_N = (points - points[row]).square().sum(dim=1).index_fill(0, row, 0.0)
        distance_N = torch.minimum(distance_N, apart_N) if number else apart_N
    centers, cluster_N = points[torch.cat(rows)], torch.zeros(len(points), dtype=torch.long, device=points.device)
    for _ in range(KMEANS_STEPS):
        nearest_N = torch.cdist(points, centers).argmin(dim=1)
        if torch.equal(nearest_N, cluster_N):
            break
        cluster_N = nearest_N
        sums = torch.zeros_like(centers).index_add_(0, cluster_N, points)
        sizes = cluster_N.bincount(minlength=count)[:, None]
        centers = torch.where(sizes > 0, sums / sizes.clamp_min(1), centers)
    return cluster_N
