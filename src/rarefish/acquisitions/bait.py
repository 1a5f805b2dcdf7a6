"""Least expected error of a linear classifier, by its Fisher information (BAIT: Ash et al., NeurIPS 2021).

For many classes, the full Fisher information of a classifier is too large. As in the binary approximation by Huseljic
et al. (2024), the outcomes are reduced to two, the predicted class or another one, so that the Fisher information of an
image with the features z and the largest probability p is the outer product of sqrt(p (1 - p)) z with itself.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.diversity import known_and_unlabeled
from rarefish.acquisitions.interface import Choice, Situation

MAX_DIMENSIONS = 512
"""Maximum number of dimensions; beyond it, only those with the most Fisher information in the pool are used."""


def choose_bait(
    situation: Situation, budget: int, generator: torch.Generator, *, oversampling: float = 2.0, ridge: float = 1.0
) -> Choice:
    """Chooses images that minimize tr((ridge · 1 + Σ I_labeled + Σ I_chosen)⁻¹ Σ I_all), I the Fisher information.

    Adds `oversampling` times the budget of images one by one, and then removes one by one those whose removal increases
    the trace least. The features before the classifier are scaled to a mean square of 1, so that the ridge does not
    depend on their unit. If there are more than 512, they are projected on the principal directions of Σ I_all. If the
    model is trained on the validation set, its images count as labeled.
    """
    features, logits, num_labeled = known_and_unlabeled(situation)
    vectors = reduce_dimensions(information_factors(features, logits))
    labeled_LF, unlabeled_NF = vectors[:num_labeled], vectors[num_labeled:]
    rows = minimize_trace(unlabeled_NF, labeled_LF, budget, oversampling, ridge)
    return Choice([situation.unlabeled[row] for row in rows], passes=len(features))


def information_factors(features: Float[Tensor, "N F"], logits: Float[Tensor, "N C"]) -> Float[Tensor, "N F"]:
    """Returns the vectors whose outer products with themselves are the Fisher information of the images."""
    largest_N = logits.double().softmax(dim=1).amax(dim=1)
    scale = features.square().mean(dtype=torch.float64).sqrt().clamp_min(1e-30)
    return (largest_N * (1 - largest_N)).sqrt()[:, None] * features.double() / scale


def reduce_dimensions(vectors: Float[Tensor, "N F"]) -> Float[Tensor, "N G"]:
    """Returns the vectors in the directions in which the sum of their squares is largest."""
    if vectors.shape[1] <= MAX_DIMENSIONS:
        return vectors
    _, directions = torch.linalg.eigh(vectors.T @ vectors)  # in ascending order
    return vectors @ directions[:, -MAX_DIMENSIONS:]


def minimize_trace(
    vectors: Float[Tensor, "N F"], labeled: Float[Tensor, "L F"], count: int, oversampling: float, ridge: float
) -> list[int]:
    """Returns `count` rows of `vectors`, chosen by forward selection and backward elimination."""
    design = Design.of(vectors, labeled, ridge)
    is_taken_N = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
    rows: list[int] = []
    for _ in range(min(len(vectors), max(count, round(oversampling * count)))):
        gain_N = design.effect_N / (1 + design.leverage_N)
        rows.append(int(gain_N.masked_fill(is_taken_N, -torch.inf).argmax()))
        is_taken_N[rows[-1]] = True
        design.change(rows[-1], +1)
    chosen, kept = design.only(rows), list(range(len(rows)))
    while len(kept) > count:
        loss = chosen.effect_N[kept] / (1 - chosen.leverage_N[kept])
        chosen.change(kept.pop(int(loss.argmin())), -1)
    return [rows[place] for place in kept]


@dataclass(frozen=True, eq=False)
class Design:
    """The information A of the labeled and chosen images, and Σ I_all = B. `change` updates the tensors in place."""

    vectors_NF: Float[Tensor, "N F"]
    inverse_FF: Float[Tensor, "F F"]
    """A⁻¹."""
    product_FF: Float[Tensor, "F F"]
    """A⁻¹ B A⁻¹."""
    leverage_N: Float[Tensor, " N"]
    """vᵀ A⁻¹ v for each vector v."""
    effect_N: Float[Tensor, " N"]
    """vᵀ A⁻¹ B A⁻¹ v for each vector v."""

    @staticmethod
    def of(vectors_NF: Tensor, labeled_LF: Tensor, ridge: float) -> "Design":
        """Returns the design of the labeled images."""
        known_FF = labeled_LF.T @ labeled_LF
        inverse_FF = torch.linalg.inv(known_FF + ridge * torch.eye(len(known_FF)).to(known_FF))
        product_FF = inverse_FF @ (known_FF + vectors_NF.T @ vectors_NF) @ inverse_FF
        leverage_N, effect_N = (((vectors_NF @ form) * vectors_NF).sum(dim=1) for form in (inverse_FF, product_FF))
        return Design(vectors_NF, inverse_FF, product_FF, leverage_N, effect_N)

    def only(self, rows: list[int]) -> "Design":
        """Returns the design with only these of the vectors."""
        return replace(
            self, vectors_NF=self.vectors_NF[rows], leverage_N=self.leverage_N[rows], effect_N=self.effect_N[rows]
        )

    def change(self, row: int, sign: int) -> None:
        """Adds the vector in this row to A, or removes it if the sign is -1, by the Sherman-Morrison formula."""
        vector_F, effect = self.vectors_NF[row], float(self.effect_N[row])
        factor = sign / (1 + sign * float(self.leverage_N[row]))
        u_F, r_F = self.inverse_FF @ vector_F, self.product_FF @ vector_F
        to_u_N, to_r_N = (self.vectors_NF @ torch.stack([u_F, r_F], dim=1)).unbind(dim=1)
        self.leverage_N.sub_(factor * to_u_N.square())
        self.effect_N.add_(factor**2 * effect * to_u_N.square() - 2 * factor * to_u_N * to_r_N)
        self.inverse_FF.sub_(factor * torch.outer(u_F, u_F))
        mixed_FF = torch.outer(u_F, r_F)
        self.product_FF.add_(factor**2 * effect * torch.outer(u_F, u_F) - factor * (mixed_FF + mixed_FF.T))
