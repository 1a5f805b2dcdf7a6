"""TypiClust: its clusters, its typicality against loops, and the order of its choices."""

import pytest
import torch
from torch import nn

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.typiclust import k_means, rank_clusters, typicality
from tests.acquisitions.situations import choose, seeded, situation


def test_k_means_finds_separate_clusters() -> None:
    truth = torch.arange(60) % 3
    points = 10 * nn.functional.one_hot(truth, 4).float() + torch.randn(60, 4, generator=seeded())
    found = k_means(points, 3, seeded())
    assert len({(int(t), int(c)) for t, c in zip(truth, found, strict=True)}) == 3


@pytest.mark.parametrize("seed", range(5))
def test_k_means_equals_loops(seed: int) -> None:
    """Also with copies of points, which are never centers of two clusters."""
    points = torch.randn(40, 3, generator=seeded(seed), dtype=torch.float64)
    points[30:] = points[:10]
    for count in (1, 6, 20):
        assert k_means(points, count, seeded(seed)).tolist() == k_means_loop(points, count, seeded(seed))


def k_means_loop(points: torch.Tensor, count: int, generator: torch.Generator) -> list[int]:
    draws = torch.rand(count, dtype=torch.float64, generator=generator).tolist()
    weights, centers = [1.0] * len(points), []
    for draw in draws:
        sums = torch.tensor(weights, dtype=torch.float64).cumsum(dim=0)
        row = next((n for n, total in enumerate(sums) if total > draw * sums[-1]), len(points) - 1)
        centers.append(points[row].clone())
        weights = [min(float((point - center).square().sum()) for center in centers) for point in points]
    nearest = [0] * len(points)
    for _ in range(25):
        found = [min(range(count), key=lambda c: float((point - centers[c]).square().sum())) for point in points]
        if found == nearest:
            break
        nearest = found
        for c in set(nearest):
            centers[c] = points[[n for n, cluster in enumerate(nearest) if cluster == c]].mean(dim=0)
    return nearest


def test_typicality_equals_loops() -> None:
    points = torch.randn(9, 3, generator=seeded(), dtype=torch.float64)
    for n, fast in enumerate(typicality(points).tolist()):
        distances = sorted(float((points[n] - points[m]).norm()) for m in range(9) if m != n)[:4]
        assert fast == pytest.approx(1 / (sum(distances) / 4 + 1e-5))


def test_clusters_with_fewest_labels_then_the_largest_come_first() -> None:
    #                       labeled | the rest
    cluster = torch.tensor([0, 0, 2, *[0] * 9, *[1] * 5, *[2] * 7, *[3] * 6, 4])
    assert rank_clusters(cluster, 3) == [3, 1, 2, 0]


def test_typiclust_takes_one_of_each_cluster_in_turn() -> None:
    here = situation()
    everything = [*here.labeled, *here.unlabeled]
    features, _ = last_features(here, everything)
    features = nn.functional.normalize(features, dim=1)
    cluster = k_means(features, 7, seeded())
    order = rank_clusters(cluster, 3)
    expected, taken = [], set()
    while len(expected) < 4:
        for c in order:
            members = [row for row in range(3, 30) if int(cluster[row]) == c and row not in taken]
            if members and len(expected) < 4:
                best = members[int(typicality(features[members]).argmax())]
                taken.add(best)
                expected.append(everything[best])
    assert choose("typiclust", here, 4).indices == expected
