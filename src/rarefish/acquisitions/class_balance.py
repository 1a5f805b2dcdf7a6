"""Acquisitions for imbalanced pools: uncertainty with a quota per class, and SIMILAR."""

import heapq
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.acquisitions.uncertainty import entropy
from rarefish.acquisitions.validation_features import failures_of


def choose_by_quota(situation: Situation, budget: int, generator: torch.Generator, *, counting_labels: bool) -> Choice:
    """Chooses the images with the highest entropy within each predicted class.

    The quotas per class are equal as far as the pool allows. With `counting_labels`, existing labels count as well, so
    that the rarest class is filled first (Tail First Sampling: Wang, Wang and Kong, 2025). The first round is
    random, because the classifier is still untrained.
    """
    if not situation.is_trained:
        return choose_random(situation, budget, generator)
    _, logits_NC = last_features(situation, situation.unlabeled)
    probability_NC = logits_NC.softmax(dim=1).cpu()
    entropy_N, predicted_N = entropy(probability_NC[None]), probability_NC.argmax(dim=1)
    num_classes = logits_NC.shape[1]
    counted = situation.labels if counting_labels else ()
    have = torch.tensor(counted, dtype=torch.long).bincount(minlength=num_classes).tolist()
    quotas = fill_quotas(have, predicted_N.bincount(minlength=num_classes).tolist(), budget)
    shuffled = torch.randperm(len(entropy_N), generator=generator)
    by_entropy = shuffled[entropy_N[shuffled].argsort(descending=True, stable=True)]
    rows = take_by_quota(by_entropy, predicted_N, quotas)
    return Choice([situation.unlabeled[row] for row in rows], passes=len(situation.unlabeled))


def fill_quotas(have: Sequence[int], supply: Sequence[int], budget: int) -> list[int]:
    """Returns how many images to take per class: the smallest total grows first, up to the number available."""
    quotas = [0] * len(have)
    totals = [(count, c) for c, count in enumerate(have) if supply[c]]
    heapq.heapify(totals)
    for _ in range(budget):
        count, c = heapq.heappop(totals)
        quotas[c] += 1
        if quotas[c] < supply[c]:
            heapq.heappush(totals, (count + 1, c))
    return quotas


def take_by_quota(order: Int[Tensor, " N"], class_N: Int[Tensor, " N"], quotas: Sequence[int]) -> list[int]:
    """Returns the first rows of each class in the given order, as many as its quota."""
    left, rows = list(quotas), []
    for row in order.tolist():
        c = int(class_N[row])
        if left[c]:
            left[c] -= 1
            rows.append(row)
    return rows


def choose_similar(
    situation: Situation, budget: int, generator: torch.Generator, *, eta: float = 1.0, num_queries: int = 1000
) -> Choice:
    """Chooses images by facility-location mutual information with the failures (SIMILAR: Kothawade et al., 2021).

    It maximizes f(A) = Σ_q max_a S_qa + η Σ_a max_q S_qa over the queries q and the chosen images a. S is the cosine
    similarity of the gradients at the classifier, for the true label of a failure and the predicted label of a pool
    image. If there are more than `num_queries` failures, a random sample of that size serves as queries.
    """
    features_MF, logits_MC, truth_M = failures_of(situation)
    sample = torch.randperm(len(truth_M), generator=generator)[:num_queries].to(truth_M.device)
    queries = _unit_factors(features_MF[sample], logits_MC[sample], truth_M[sample])
    features_NF, logits_NC = last_features(situation, situation.unlabeled)
    pool = _unit_factors(features_NF, logits_NC, logits_NC.argmax(dim=1))
    similarity_QN = ((queries[0] @ pool[0].T) * (queries[1] @ pool[1].T)).clamp_min_(0)
    rows = cover_queries(similarity_QN, budget, eta)
    passes = len(situation.validation) + len(situation.unlabeled)
    return Choice([situation.unlabeled[row] for row in rows.tolist()], passes)


def _unit_factors(features_NF: Tensor, logits_NC: Tensor, label_N: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both factors of each gradient (p - 1_y) ⊗ z, normalized: products of them are cosines of gradients."""
    error_NC = logits_NC.softmax(dim=1) - functional.one_hot(label_N, logits_NC.shape[1])
    return functional.normalize(error_NC, dim=1), functional.normalize(features_NF, dim=1)


def cover_queries(similarity: Float[Tensor, "Q N"], count: int, eta: float) -> Int[Tensor, " count"]:
    """Returns greedily chosen columns, each of which adds most to Σ_q max_a S_qa + η Σ_a max_q S_qa."""
    own_N = eta * similarity.amax(dim=0)
    covered_Q = torch.zeros_like(similarity[:, 0])
    rows = []
    for _ in range(count):
        gain_N = (similarity - covered_Q[:, None]).clamp_min(0).sum(dim=0) + own_N
        row = gain_N.argmax(dim=0, keepdim=True)
        rows.append(row)
        own_N = own_N.index_fill(0, row, -torch.inf)
        covered_Q = torch.maximum(covered_Q, similarity[:, row[0]])
    return torch.cat(rows)
