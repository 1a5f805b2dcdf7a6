"""Coverage by balls whose radius keeps them pure (ProbCover: Yehuda, Dekel, Hacohen and Weinshall, NeurIPS 2022)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.pool_coverage import BLOCK, ball, cover, read_scene
from rarefish.acquisitions.typiclust import k_means


def choose_probcover(situation: Situation, budget: int, generator: torch.Generator, *, purity: float = 0.95) -> Choice:
    """Chooses images one by one, each with the most images in its ball that are in no ball of another chosen image.

    Labeled images have balls as well. The radius is the largest at which at least the fraction `purity` of the balls
    contains only images of one k-means cluster, with as many clusters as classes. The features are those before the
    classifier, normalized to length 1. Images and pure balls are counted on a random sample of 4,096 unlabeled images,
    or fewer if there are more than 24,000. Ties are broken at random.
    """
    scene = read_scene(situation, generator)
    num_clusters = min(scene.logits_NC.shape[1], len(scene.unlabeled_NF))
    cluster_N = k_means(scene.unlabeled_NF, num_clusters, generator)
    radius = purest_radius(scene.squares_NT, cluster_N, cluster_N[scene.targets_T], purity)
    weight_N = torch.ones_like(scene.unlabeled_NF[:, 0])
    tie_break_N = torch.rand(len(weight_N), generator=generator).to(weight_N) / 2  # gains differ by at least 1
    rows = cover(scene, ball(radius), weight_N, tie_break_N, budget)
    passes = len(situation.labeled) + len(situation.unlabeled)
    return Choice([situation.unlabeled[row] for row in rows], passes)


def purest_radius(
    squares_NT: Float[Tensor, "N T"], cluster_N: Int[Tensor, " N"], cluster_T: Int[Tensor, " T"], purity: float
) -> float:
    """Returns the largest radius at which this fraction of the targets' balls contains no other cluster.

    The ball of a target stays pure until it reaches the nearest image of another cluster.
    """
    nearest_T = torch.full_like(squares_NT[0], torch.inf)
    for squares, cluster in zip(squares_NT.split(BLOCK), cluster_N.split(BLOCK), strict=True):
        others = squares.masked_fill(cluster[:, None] == cluster_T, torch.inf)
        nearest_T = torch.minimum(nearest_T, others.amin(dim=0))
    num_impure = int((1 - purity) * len(nearest_T))
    limit = float(nearest_T.sort().values[num_impure])
    return min(limit, 4.0) ** 0.5 * (1 - 1e-6)
