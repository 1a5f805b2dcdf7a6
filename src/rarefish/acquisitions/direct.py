"""Images around the best threshold of each class (DIRECT: Nuggehalli, Zhang, Jain and Nowak, 2023; ICML 2025).

For each class, all images are sorted by the margin of that class. Part of the budget is used to find the threshold that
best separates the images of the class from the others. The rest is spent on both sides of the threshold. A wrong label
counts only as one classification error. The oracle is asked within the round.
"""

import math

import numpy as np
import torch

from rarefish.acquisitions.galaxy import NO, UNKNOWN, YES, build_chains
from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.random_sampling import choose_random


def choose_direct(
    situation: Situation, budget: int, generator: torch.Generator, *, parallel: int = 20, most_per_class: int = 60
) -> Choice:
    """Chooses images: spends about half the budget on finding each class's threshold, the rest on images next to it.

    The search asks for `parallel` labels at a time and for at most `most_per_class` labels per class. The first round
    is random, because the classifier is still untrained.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    chains = build_chains(situation, "DIRECT", most_likely_first=True)
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    rows: list[int] = []
    states, num_classes = chains.state, len(chains.order)
    search_budget = min(budget // num_classes // 2, most_per_class)
    frequency = [sum(label == c for label in chains.labels) for c in range(num_classes)]
    for c in sorted(range(num_classes), key=lambda c: -frequency[c]):
        low, high = uncertain_interval(states[c])
        left = search_budget
        while left > 0 and (free := _unlabeled_ranks(states[c], low, high)).size:
            rows += chains.query_ranks(c, rng.choice(free, min(parallel, left, free.size), replace=False))
            low, high = shrink(states[c], low, high, left // parallel, rng)
            left -= min(parallel, left)
    remaining = budget - len(rows)
    for turn, c in enumerate(rng.permutation(num_classes)):
        share = remaining * (turn + 1) // num_classes - remaining * turn // num_classes
        rows += chains.query_ranks(int(c), outward(states[c], share))
    return Choice([chains.indices[row] for row in rows], passes=len(chains.indices))


def accuracies(state_N: np.ndarray) -> np.ndarray:
    """Returns, for each threshold from 0 to N, the number of labeled ranks on the correct side minus the others."""
    before = np.concatenate([[0], np.cumsum(state_N)])
    return 2 * before - state_N.sum()


def uncertain_interval(state_N: np.ndarray) -> tuple[int, int]:
    """Returns the ranks of the last YES before the first NO and of the first NO after the last YES."""
    yes, no = np.flatnonzero(state_N == YES), np.flatnonzero(state_N == NO)
    sure_yes = yes[yes < (no[0] if no.size else len(state_N))]
    sure_no = no[no > (yes[-1] if yes.size else -1)]
    return int(sure_yes[-1]) if sure_yes.size else 0, int(sure_no[0]) if sure_no.size else len(state_N) - 1


def shrink(state_N: np.ndarray, low: int, high: int, rounds_left: int, rng: np.random.Generator) -> tuple[int, int]:
    """Moves the end with the lower accuracy inward until the interval is as small as this round requires.

    The number of unlabeled ranks decreases by the same factor in each round, so that one is left after the last round.
    """
    count = _unlabeled_ranks(state_N, low, high).size
    factor = 1.0 if rounds_left <= 1 or count == 0 else count ** (1 / rounds_left)
    target, accuracy = math.ceil(count / factor), accuracies(state_N)
    while count > target:
        is_low = accuracy[low] < accuracy[high] or (accuracy[low] == accuracy[high] and rng.random() < 0.5)
        count -= int(state_N[low if is_low else high] == UNKNOWN)
        low, high = (low + 1, high) if is_low else (low, high - 1)
    return low, high


def outward(state_N: np.ndarray, count: int) -> np.ndarray:
    """Returns up to `count` unlabeled ranks, alternately left and right of the best threshold, nearest first."""
    best = int(accuracies(state_N).argmax())
    left, right = np.arange(best - 1, -1, -1), np.arange(best, len(state_N))
    steps = max(left.size, right.size)
    order = np.full(2 * steps, -1)
    order[0 : 2 * left.size : 2], order[1 : 2 * right.size : 2] = left, right
    order = order[order >= 0]
    return order[state_N[order] == UNKNOWN][:count]


def _unlabeled_ranks(state_N: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns the unlabeled ranks from `low` to `high`, inclusive."""
    return low + np.flatnonzero(state_N[low : high + 1] == UNKNOWN)
