"""Generalized coverage with a Gaussian kernel (MaxHerding: Bae, Noh and Sutherland, ECCV 2024)."""

import torch

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.pool_coverage import cover, gaussian, read_scene

RADIUS = 1.0
"""Radius of the kernel for features of length 1, as in the paper."""


def choose_max_herding(
    situation: Situation, budget: int, generator: torch.Generator, *, radius: float = RADIUS
) -> Choice:
    """Chooses images one by one, each adding most to Σ_x max_a k(x, a) over labeled and chosen images a.

    k is a Gaussian kernel on the features before the classifier, normalized to length 1. The sum over the unlabeled
    images x is estimated from a random sample of 4,096, or fewer if there are more than 24,000 images.
    """
    scene = read_scene(situation, generator)
    weight_N = torch.ones_like(scene.unlabeled_NF[:, 0])
    rows = cover(scene, gaussian(radius), weight_N, torch.zeros_like(weight_N), budget)
    passes = len(situation.labeled) + len(situation.unlabeled)
    return Choice([situation.unlabeled[row] for row in rows], passes)
