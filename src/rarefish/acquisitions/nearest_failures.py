"""The nearest images of each failure in turn (after RDS+: Ivison et al., 2025)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.validation_features import failures_of


def choose_nearest_failures(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses, for each failure in turn, the free image with the largest cosine similarity to it.

    The failures are misclassified validation images, or all validation images if there are none, in random order. When
    each of them has an image, they take turns again. The features are those before the classifier. RDS+ takes turns in
    the same way between the examples of a target task, with embeddings of text.
    """
    features_KF, _, _ = failures_of(situation)
    order = torch.randperm(len(features_KF), generator=generator)[:budget].to(features_KF.device)
    features_NF, _ = last_features(situation, situation.unlabeled)
    queries_KF, points_NF = functional.normalize(features_KF[order], dim=1), functional.normalize(features_NF, dim=1)
    rows = take_turns(queries_KF @ points_NF.T, budget)
    passes = len(situation.validation) + len(situation.unlabeled)
    return Choice([situation.unlabeled[row] for row in rows], passes)


def take_turns(similarity_KN: Float[Tensor, "K N"], count: int) -> list[int]:
    """Returns `count` columns: each row in turn takes its largest column that is still free."""
    is_taken_N = torch.zeros_like(similarity_KN[0], dtype=torch.bool)
    rows: list[int] = []
    for turn in range(count):
        row = similarity_KN[turn % len(similarity_KN)].masked_fill(is_taken_N, -torch.inf).argmax()
        is_taken_N[row] = True
        rows.append(int(row))
    return rows
