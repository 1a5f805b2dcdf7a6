"""ProbCover: its radius and its choices against loops."""

import pytest
import torch
from torch.nn import functional

from rarefish.acquisitions.probcover import purest_radius
from rarefish.acquisitions.typiclust import k_means
from tests.acquisitions.situations import choose, seeded, vector_situation, vectors


def slow_radius(points: torch.Tensor, cluster: list[int], purity: float) -> float:
    """Returns the largest distance between two points at which enough balls are pure."""
    distances = torch.cdist(points, points).tolist()

    def is_pure(n: int, radius: float) -> bool:
        return all(cluster[m] == cluster[n] for m, d in enumerate(distances[n]) if d <= radius)

    radii = sorted({d for row in distances for d in row})
    good = [r for r in radii if sum(is_pure(n, r) for n in range(len(points))) >= purity * len(points)]
    return max(good)


@pytest.mark.parametrize("purity", [0.95, 0.5, 1.0])
def test_the_radius_is_the_largest_with_enough_pure_balls(purity: float) -> None:
    points = functional.normalize(vectors("validation").tensors[0].double(), dim=1)
    cluster = k_means(points, 4, seeded())
    squares = torch.cdist(points, points).square().float()
    found, slow = purest_radius(squares, cluster, cluster, purity), slow_radius(points, cluster.tolist(), purity)
    distances = torch.cdist(points, points).flatten().sort().values
    larger = float(distances[distances > slow + 1e-9][0])
    assert slow - 1e-4 <= found <= larger + 1e-4


def test_without_other_clusters_everything_is_one_ball() -> None:
    zeros = torch.zeros(5, dtype=torch.long)
    assert purest_radius(torch.ones(5, 5), zeros, zeros, 0.95) == pytest.approx(2, rel=1e-5)


def test_each_choice_covers_the_most_images() -> None:
    here = vector_situation()
    points = functional.normalize(vectors("pool").tensors[0], dim=1).double()
    generator = seeded()
    torch.randperm(114, generator=generator)  # the targets are drawn first
    cluster = k_means(functional.normalize(vectors("pool").tensors[0][here.unlabeled], dim=1), 4, generator)
    radius = slow_radius(points[here.unlabeled], cluster.tolist(), 0.95)
    # The radius of the method lies below the next distance, so both balls contain the same images.
    near = {i: {j for j in range(120) if float((points[i] - points[j]).norm()) <= radius + 1e-9} for i in range(120)}
    chosen = choose("probcover", here, 12).indices
    left = set(here.unlabeled).difference(*(near[i] for i in here.labeled))
    sizes = []
    for i in chosen:
        sizes.append(len(near[i] & left))
        assert sizes[-1] == max(len(near[j] & left) for j in here.unlabeled)
        left -= near[i]
    assert sizes[0] > sizes[-1]


def test_ties_are_broken_at_random() -> None:
    """Once everything is covered, all images are equally good."""
    here = vector_situation(())
    lasts = [choose("probcover", here, 100, seed).indices[-20:] for seed in range(2)]
    assert lasts[0] != lasts[1] and all(last != sorted(last) for last in lasts)
