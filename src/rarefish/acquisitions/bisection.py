"""Images at the border of each class, found by bisection (GALAXY: Zhang, Katz-Samuels and Nowak, ICML 2022).

All images stand in a chain for each class, sorted by how far the class is ahead; neighbours in rank are joined. The
next image to ask for is the middle of the shortest path between two labeled images of which one is of the class and the
other is not. Every answer counts at once, for all chains, so the oracle is asked inside the round.
"""

import numpy as np
import torch

from rarefish.acquisitions.chance import choose_random
from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.situation import Choice, Situation
from rarefish.errors import ArgumentError

UNKNOWN, NO, YES = 0, -1, 1


def choose_galaxy(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """The classes take turns; where a chain has no path left, images two, three … ranks apart are joined as well.

    A random first round, as for all that ask the classifier.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    if situation.ask is None:
        raise ArgumentError("GALAXY learns from every answer within a round; give the situation an oracle (ask=).")
    everything = [*situation.labeled, *situation.unlabeled]
    _, logits = last_features(situation, everything)
    chains, place = sort_chains(logits.softmax(dim=1).double().cpu().numpy())
    labels = list(situation.labels) or situation.ask(list(situation.labeled))
    states = np.full(chains.shape, UNKNOWN)
    for row, label in enumerate(labels):
        mark(states, place, row, label)
    num_classes, reach = len(chains), 1
    free, rows = set(range(len(situation.labeled), len(everything))), []
    for turn in range(budget):
        c = turn % num_classes
        rank = middle_of_shortest_path(states[c], reach)
        if rank is None:
            reach += 1
            rank = middle_of_shortest_path(states[c], reach)
        row = int(chains[c, rank]) if rank is not None else _any(free, generator)
        rows.append(row)
        free.remove(row)
        mark(states, place, row, situation.ask([everything[row]])[0])
    return Choice([everything[row] for row in rows], passes=len(everything))


def sort_chains(probability_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each class the rows by p_c less the largest p, the surest of the class last; and the rank of each row."""
    best = probability_NC.max(axis=1, keepdims=True)
    ahead_CN = (probability_NC - best + 1e-8 * best).T
    chains = ahead_CN.argsort(axis=1, kind="stable")
    return chains, chains.argsort(axis=1)


def mark(states: np.ndarray, place: np.ndarray, row: int, label: int | None) -> None:
    """An answer, in all chains; a refusal is not of any class."""
    for c in range(len(states)):
        states[c, place[c, row]] = YES if c == label else NO


def middle_of_shortest_path(state_N: np.ndarray, reach: int) -> int | None:
    """The rank to ask for: the middle of the shortest path over unlabeled ranks between a YES and a NO.

    Ranks up to `reach` apart are joined, but for a YES and a NO, which are never. None where there is no path.
    """
    between = (state_N == UNKNOWN) & _near(state_N == YES, reach) & _near(state_N == NO, reach)
    if between.any():
        return int(between.argmax())
    known = np.flatnonzero(state_N != UNKNOWN)
    is_cut = (state_N[known[1:]] != state_N[known[:-1]]) & (np.diff(known) > reach)
    if not is_cut.any():
        return None
    gaps = np.where(is_cut, np.diff(known), len(state_N) + 1)
    low, high = known[gaps.argmin()], known[gaps.argmin() + 1]
    num_nodes = -(-(high - low) // reach) + 1
    no, step = (low, reach) if state_N[low] == NO else (high, -reach)
    return int(no + step * (num_nodes // 2))


def _near(is_there: np.ndarray, reach: int) -> np.ndarray:
    """Which ranks have one within reach."""
    total = np.concatenate([[0], np.cumsum(is_there)])
    ranks = np.arange(len(is_there))
    return total[np.minimum(ranks + reach + 1, len(is_there))] > total[np.maximum(ranks - reach, 0)]


def _any(free: set[int], generator: torch.Generator) -> int:
    ordered = sorted(free)
    return ordered[int(torch.randint(len(ordered), (), generator=generator))]
