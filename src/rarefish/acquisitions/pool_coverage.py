"""Greedy coverage of the pool: each choice adds most to the similarity of images to the nearest chosen image.

MaxHerding, UHerding and ProbCover differ only in the similarity and in the weights of images. The mean over the pool is
estimated from a random sample of images, the targets. An image's contribution to its own coverage is always exact, so
that images outside the sample can be told apart even if the similarity is zero for all other images.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rarefish.acquisitions.diversity import known_and_unlabeled
from rarefish.acquisitions.interface import Situation

NUM_TARGETS = 4096
"""Maximum number of targets."""
MAX_ENTRIES = 100_000_000
"""Maximum number of entries of the matrix of similarities; beyond it, there are fewer targets."""
BLOCK = 256
"""Number of rows for which gains are computed at a time."""

Kernel = Callable[[Tensor], Tensor]
"""Function that maps squared distances to similarities from 0 to 1. It is 1 at distance 0 and does not increase."""


def gaussian(radius: float) -> Kernel:
    """Returns the kernel exp(-d² / radius²)."""
    return lambda square: (square / -(radius**2)).exp_()


def ball(radius: float) -> Kernel:
    """Returns the kernel that is 1 up to the radius and 0 beyond it."""
    return lambda square: (square <= radius**2).float()


@dataclass(frozen=True, eq=False)
class Scene:
    """The labeled and unlabeled images in the space in which they are covered.

    If the model is trained on the validation set, its images count as labeled.
    """

    labeled_LF: Float[Tensor, "L F"]
    """Features before the classifier, normalized to length 1."""
    unlabeled_NF: Float[Tensor, "N F"]
    logits_NC: Float[Tensor, "N C"]
    """Logits of the unlabeled images."""
    targets_T: Int[Tensor, " T"]
    """Rows of the unlabeled images that serve as targets."""
    squares_NT: Float[Tensor, "N T"]
    """Squared distances of the unlabeled images to the targets."""


def read_scene(situation: Situation, generator: torch.Generator) -> Scene:
    """Returns the features of all images that are labeled or may be chosen, with randomly drawn targets."""
    features, logits, num_labeled = known_and_unlabeled(situation)
    features = functional.normalize(features, dim=1)
    unlabeled_NF = features[num_labeled:]
    num_targets = min(NUM_TARGETS, max(1, MAX_ENTRIES // len(unlabeled_NF)))
    drawn = torch.randperm(len(unlabeled_NF), generator=generator)[:num_targets].sort().values
    targets_T = drawn.to(features.device)
    squares_NT = squared_distances(unlabeled_NF, unlabeled_NF[targets_T])
    return Scene(features[:num_labeled], unlabeled_NF, logits[num_labeled:], targets_T, squares_NT)


def squared_distances(left: Float[Tensor, "N F"], right: Float[Tensor, "M F"]) -> Float[Tensor, "N M"]:
    """Returns squared distances between vectors of length 1."""
    return (left @ right.T).mul_(-2).add_(2).clamp_min_(0)


def cover(
    scene: Scene, kernel: Kernel, weight_N: Float[Tensor, " N"], bonus_N: Float[Tensor, " N"], count: int
) -> list[int]:
    """Returns the rows of `count` unlabeled images that cover the most, chosen one after the other.

    They maximize the sum over images of weight · largest similarity to a chosen or labeled image, plus the sum of the
    bonuses of the chosen images. Overwrites the distances in `scene`.
    """
    coverage = Coverage.of(scene, kernel, weight_N, bonus_N)
    rows: list[int] = []
    # Gains never increase, so an earlier gain is an upper bound, and only the largest ones must be computed again.
    bound_N = torch.cat([coverage.gains(block) for block in torch.arange(len(weight_N)).split(BLOCK)])
    while True:
        is_current_N = torch.zeros_like(bound_N, dtype=torch.bool)
        while True:
            best = int(bound_N.masked_fill(~is_current_N, -torch.inf).argmax())
            stale_N = bound_N.masked_fill(is_current_N, -torch.inf)
            if is_current_N[best] and bound_N[best] >= stale_N.amax():
                break
            block = stale_N.topk(min(BLOCK, len(stale_N))).indices
            block = block[~is_current_N[block]]
            bound_N[block] = torch.minimum(coverage.gains(block), bound_N[block])
            is_current_N[block] = True
        rows.append(best)
        if len(rows) == count:
            return rows
        bound_N[best] = -torch.inf
        coverage.add(scene.unlabeled_NF[best : best + 1])


@dataclass(frozen=True, eq=False)
class Coverage:
    """How well each unlabeled image is covered. `add` updates `covered_N` in place."""

    scene: Scene
    kernel: Kernel
    similarity_NT: Float[Tensor, "N T"]
    """Similarity of images to targets; 0 of a target to itself."""
    weight_N: Float[Tensor, " N"]
    bonus_N: Float[Tensor, " N"]
    scale_N: Float[Tensor, " N"]
    """Number of other images per other target."""
    covered_N: Float[Tensor, " N"]
    """Largest similarity of each image to a labeled or chosen image."""

    @staticmethod
    def of(scene: Scene, kernel: Kernel, weight_N: Tensor, bonus_N: Tensor) -> "Coverage":
        """Returns the coverage by the labeled images."""
        num_images, num_targets = scene.squares_NT.shape
        for block in scene.squares_NT.split(BLOCK):
            block.copy_(kernel(block))
        scene.squares_NT[scene.targets_T, torch.arange(num_targets)] = 0
        scale_N = torch.full_like(weight_N, (num_images - 1) / num_targets)
        scale_N[scene.targets_T] = (num_images - 1) / max(1, num_targets - 1)
        found = Coverage(
            scene, kernel, scene.squares_NT, weight_N, bonus_N, scale_N, covered_N=torch.zeros_like(weight_N)
        )
        for first in range(0, len(scene.labeled_LF), BLOCK):
            found.add(scene.labeled_LF[first : first + BLOCK])
        return found

    def gains(self, rows: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Returns how much each of these images would add."""
        targets_T = self.scene.targets_T
        excess_BT = (self.similarity_NT[rows] - self.covered_N[targets_T]).clamp_min_(0)
        others_B = excess_BT @ self.weight_N[targets_T]
        own_B = self.weight_N[rows] * (1 - self.covered_N[rows])
        return self.scale_N[rows] * others_B + own_B + self.bonus_N[rows]

    def add(self, points_PF: Float[Tensor, "P F"]) -> None:
        """Covers images by these points."""
        similarity_NP = self.kernel(squared_distances(self.scene.unlabeled_NF, points_PF))
        torch.maximum(self.covered_N, similarity_NP.amax(dim=1), out=self.covered_N)
