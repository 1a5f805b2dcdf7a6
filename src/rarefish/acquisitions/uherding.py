"""Coverage of uncertain images (UHerding: Bae, Oliveira and Sutherland, ICLR 2025)."""

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.max_herding import RADIUS, choose_max_herding
from rarefish.acquisitions.pool_coverage import cover, gaussian, read_scene, squared_distances
from rarefish.acquisitions.uncertainty import margin
from rarefish.acquisitions.validation_features import read_validation
from rarefish.pseudo_labels.label_shift import fit_temperature

COPIES = 0.01
"""Labeled images closer together than this are copies, which say nothing about the radius."""


def choose_uherding(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses images one by one, each adding most to Σ_x u(x) max_a k(x, a) over labeled and chosen images a.

    u is one minus the margin between the two largest probabilities, and k the kernel of MaxHerding, on the same sample
    of 4,096 images x. Both adapt to the number of labels. The radius is the smallest distance between labeled images,
    but at most 1. The temperature of the probabilities is fitted to the validation set and is at least 1; if the model
    was trained on the validation set, it is therefore close to 1. Without labels, the method is MaxHerding.
    """
    if not situation.is_trained:
        return choose_max_herding(situation, budget, generator)
    scene = read_scene(situation, generator)
    _, logits_MC, truth_M = read_validation(situation)
    temperature = fit_temperature(logits_MC.double(), truth_M)
    uncertainty_N = 1 + margin((scene.logits_NC / temperature).softmax(dim=1)[None])
    kernel = gaussian(smallest_distance(scene.labeled_LF))
    rows = cover(scene, kernel, uncertainty_N, torch.zeros_like(uncertainty_N), budget)
    passes = len(situation.labeled) + len(situation.unlabeled) + len(situation.validation)
    return Choice([situation.unlabeled[row] for row in rows], passes)


def smallest_distance(points: Float[Tensor, "L F"]) -> float:
    """Returns the smallest distance between two vectors of length 1 that are not copies, or 1 if it is larger."""
    smallest = RADIUS**2
    for first, block in zip(range(0, len(points), 1000), points.split(1000), strict=True):
        squares = squared_distances(block, points)
        squares[torch.arange(len(block)), torch.arange(first, first + len(block))] = torch.inf
        smallest = min(smallest, float(squares.masked_fill(squares <= COPIES**2, torch.inf).amin()))
    return smallest**0.5
