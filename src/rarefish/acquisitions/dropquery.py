"""Images whose prediction changes with dropout on their features, one per cluster (DropQuery: Gupte et al., 2024)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.typiclust import k_means
from rarefish.models.layer_selection import evaluating
from rarefish.models.networks import classifier_of

BLOCK = 1000
"""Number of images whose masks are drawn at a time."""


def choose_dropquery(
    situation: Situation, budget: int, generator: torch.Generator, *, samples: int = 3, rate: float = 0.75
) -> Choice:
    """Chooses, from the images whose prediction changes with dropout, the one nearest to the center of each cluster.

    The features before the classifier pass through dropout and the classifier `samples` times. The candidates are the
    images whose prediction changes in more than half of the samples; if there are fewer than the budget, those with the
    most changes. K-means forms as many clusters as the budget. With an untrained model, all images are candidates.
    """
    features_NF, _ = last_features(situation, situation.unlabeled)
    candidates = torch.arange(len(features_NF), device=features_NF.device)
    if situation.is_trained:
        changes_N = count_changes(features_NF, classifier_of(situation.model)[1], samples, rate, generator)
        order = torch.randperm(len(changes_N), generator=generator).to(changes_N.device)
        order = order[changes_N[order].argsort(descending=True, stable=True)]
        num_candidates = max(budget, int((2 * changes_N > samples).sum()))
        candidates = order[:num_candidates].sort().values
    rows = candidates[one_per_cluster(features_NF[candidates], budget, generator)]
    return Choice([situation.unlabeled[row] for row in rows.tolist()], passes=len(features_NF))


@torch.no_grad()
def count_changes(
    features: Float[Tensor, "N F"], classifier: nn.Linear, samples: int, rate: float, generator: torch.Generator
) -> Int[Tensor, " N"]:
    """Returns in how many of the samples dropout on the features changes the classifier's prediction.

    Each image and each sample has its own mask. The masks do not depend on the batch size.
    """
    counts = []
    with evaluating(classifier):
        for block in features.split(BLOCK):
            predicted_B = classifier(block).argmax(dim=1)
            uniform = torch.rand(samples, *block.shape, generator=generator).to(block.device)
            dropped = torch.where(uniform < rate, 0, block / (1 - rate))
            counts.append((classifier(dropped).argmax(dim=2) != predicted_B).sum(dim=0))
    return torch.cat(counts)


def one_per_cluster(points: Float[Tensor, "N F"], count: int, generator: torch.Generator) -> Int[Tensor, " count"]:
    """Returns the point nearest to the mean of each of `count` clusters; random points in place of empty clusters."""
    cluster_N = k_means(points, count, generator)
    sums = torch.zeros_like(points[:count]).index_add_(0, cluster_N, points)
    means = sums / cluster_N.bincount(minlength=count).clamp_min(1)[:, None]
    order = torch.randperm(len(points), generator=generator).to(points.device)
    distance_N = (points - means[cluster_N]).square().sum(dim=1)[order]
    order = order[distance_N.argsort(stable=True)]
    order = order[cluster_N[order].argsort(stable=True)]  # by cluster, then by increasing distance
    is_first_N = torch.ones_like(order, dtype=torch.bool)
    is_first_N[1:] = cluster_N[order[1:]] != cluster_N[order[:-1]]
    rest = order[~is_first_N]
    shuffled = rest[torch.randperm(len(rest), generator=generator).to(rest.device)]
    return torch.cat([order[is_first_N], shuffled])[:count]
