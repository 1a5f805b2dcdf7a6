"""Images at the border of each class, found by bisection (GALAXY: Zhang, Katz-Samuels and Nowak, ICML 2022).

All images stand in a chain for each class, sorted by how far the class is ahead; neighbours in rank are joined. The
next image to ask for is the middle of the shortest path between two labeled images of which one is of the class and the
other is not. Every answer counts at once, for all chains, so the oracle is asked inside the round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Choice, Oracle, Situation
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.errors import ArgumentError

UNKNOWN, NO, YES = 0, -1, 1


def choose_galaxy(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """The classes take turns; where a chain has no path left, images two, three … ranks apart are joined as well.

    A random first round, as for all that ask the classifier.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    chains = open_chains(situation, "GALAXY")
    num_classes, reach = len(chains.order), 1
    free, rows = set(range(len(situation.labeled), len(chains.everything))), []
    for turn in range(budget):
        c = turn % num_classes
        rank = middle_of_shortest_path(chains.state[c], reach)
        if rank is None:
            reach += 1
            rank = middle_of_shortest_path(chains.state[c], reach)
        row = int(chains.order[c, rank]) if rank is not None else _any(free, generator)
        rows.append(row)
        free.remove(row)
        chains.buy([row])
    return Choice([chains.everything[row] for row in rows], passes=len(chains.everything))


@dataclass(frozen=True, eq=False)
class Chains:
    """All images, labeled ones first, in the order of each class, and what is known of each; answers are noted here."""

    everything: list[int]
    """Pool index of each row."""
    ask: Oracle
    labels: Sequence[int | None]
    """Of the rows that were labeled before the round."""
    order: np.ndarray
    """(class, rank) -> row."""
    place: np.ndarray
    """(class, row) -> rank."""
    state: np.ndarray
    """(class, rank) -> UNKNOWN, NO or YES."""

    def buy(self, rows: Sequence[int]) -> None:
        """Asks for rows, and notes the answers in all chains."""
        self.note(rows, self.ask([self.everything[row] for row in rows]))

    def note(self, rows: Sequence[int], labels: Sequence[int | None]) -> None:
        """A refusal is not of any class."""
        for row, label in zip(rows, labels, strict=True):
            for c in range(len(self.state)):
                self.state[c, self.place[c, row]] = YES if c == label else NO


def open_chains(situation: Situation, name: str, surest_first: bool = False) -> Chains:
    """The chains of a situation; complains, under the method's name, where nobody can be asked."""
    if situation.ask is None:
        raise ArgumentError(f"{name} learns from answers within a round; give the situation an oracle (ask=).")
    everything = [*situation.labeled, *situation.unlabeled]
    _, logits = last_features(situation, everything)
    order = sort_chains(logits.softmax(dim=1).double().cpu().numpy())
    order = np.ascontiguousarray(order[:, ::-1]) if surest_first else order
    labels = list(situation.labels) or situation.ask(list(situation.labeled))
    state = np.full(order.shape, UNKNOWN)
    chains = Chains(everything, situation.ask, labels, order, order.argsort(axis=1), state)
    chains.note(range(len(labels)), labels)
    return chains


def sort_chains(probability_NC: np.ndarray) -> np.ndarray:
    """For each class the rows by p_c less the largest p, the surest of the class last."""
    best = probability_NC.max(axis=1, keepdims=True)
    return (probability_NC - best + 1e-8 * best).T.argsort(axis=1, kind="stable")


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
