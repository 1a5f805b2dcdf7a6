"""Images around the best threshold of each class (DIRECT: Nuggehalli, Zhang, Jain and Nowak, 2023; ICML 2025).

All images are sorted by how far a class is ahead. Where to cut the order, so that the labeled images before the cut are
of the class and those behind it are not, is learned with part of the budget; the rest is spent on both sides of the
cut. Mistakes in labels only count as such. The oracle is asked inside the round.
"""

import math

import numpy as np
import torch

from rarefish.acquisitions.galaxy import NO, UNKNOWN, YES, open_chains
from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.random_sampling import choose_random


def choose_direct(
    situation: Situation, budget: int, generator: torch.Generator, *, parallel: int = 20, most_per_class: int = 60
) -> Choice:
    """About half the budget narrows down each class's threshold, `parallel` answers at a time; then outward from it.

    A random first round, as for all that ask the classifier.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    chains = open_chains(situation, "DIRECT", surest_first=True)
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    rows: list[int] = []

    def buy(c: int, ranks: np.ndarray) -> None:
        rows.extend(new := chains.order[c, ranks].tolist())
        chains.buy(new)

    states, num_classes = chains.state, len(chains.order)
    search = min(budget // num_classes // 2, most_per_class)
    frequency = [sum(answer == c for answer in chains.labels) for c in range(num_classes)]
    for c in sorted(range(num_classes), key=lambda c: -frequency[c]):
        low, high = uncertain_interval(states[c])
        left = search
        while left > 0 and (free := _free(states[c], low, high)).size:
            buy(c, rng.choice(free, min(parallel, left, free.size), replace=False))
            low, high = shrink(states[c], low, high, left // parallel, rng)
            left -= min(parallel, left)
    rest = budget - len(rows)
    for turn, c in enumerate(rng.permutation(num_classes)):
        share = rest * (turn + 1) // num_classes - rest * turn // num_classes
        buy(int(c), outward(states[c], share))
    return Choice([chains.everything[row] for row in rows], passes=len(chains.everything))


def accuracies(state_N: np.ndarray) -> np.ndarray:
    """For each threshold s from 0 to N: labeled ranks on their right side less those on the wrong one."""
    before = np.concatenate([[0], np.cumsum(state_N)])
    return 2 * before - state_N.sum()


def uncertain_interval(state_N: np.ndarray) -> tuple[int, int]:
    """Ranks from the last YES before the first NO to the first NO after which there is no YES."""
    yes, no = np.flatnonzero(state_N == YES), np.flatnonzero(state_N == NO)
    sure_yes = yes[yes < (no[0] if no.size else len(state_N))]
    sure_no = no[no > (yes[-1] if yes.size else -1)]
    return int(sure_yes[-1]) if sure_yes.size else 0, int(sure_no[0]) if sure_no.size else len(state_N) - 1


def shrink(state_N: np.ndarray, low: int, high: int, rounds_left: int, rng: np.random.Generator) -> tuple[int, int]:
    """The interval with its worse end moved inward until as many unlabeled ranks are left as the plan wants.

    The plan: the same factor in each round, so that one rank is left after the last.
    """
    count = _free(state_N, low, high).size
    factor = 1.0 if rounds_left <= 1 or count == 0 else count ** (1 / rounds_left)
    wanted, accuracy = math.ceil(count / factor), accuracies(state_N)
    while count > wanted:
        is_low = accuracy[low] < accuracy[high] or (accuracy[low] == accuracy[high] and rng.random() < 0.5)
        count -= int(state_N[low if is_low else high] == UNKNOWN)
        low, high = (low + 1, high) if is_low else (low, high - 1)
    return low, high


def outward(state_N: np.ndarray, count: int) -> np.ndarray:
    """Up to `count` unlabeled ranks by turns left and right of the best threshold, one rank farther at each step."""
    best = int(accuracies(state_N).argmax())
    left, right = np.arange(best - 1, -1, -1), np.arange(best, len(state_N))
    steps = max(left.size, right.size)
    order = np.full(2 * steps, -1)
    order[0 : 2 * left.size : 2], order[1 : 2 * right.size : 2] = left, right
    order = order[order >= 0]
    return order[state_N[order] == UNKNOWN][:count]


def _free(state_N: np.ndarray, low: int, high: int) -> np.ndarray:
    return low + np.flatnonzero(state_N[low : high + 1] == UNKNOWN)
