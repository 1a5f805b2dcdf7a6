"""Images at the decision boundary of each class, by bisection (GALAXY: Zhang, Katz-Samuels and Nowak, ICML 2022).

For each class, all images form a chain sorted by the margin of that class, and neighbors in rank are connected. The
next query is the middle of the shortest path between a labeled image of the class and a labeled image of another class.
Each answer updates all chains immediately, so the oracle is asked within the round.
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
    """Chooses images by bisecting the chains of the classes in turn.

    If a chain has no path left, images that are two, three or more ranks apart are connected as well. The first round
    is random, because the classifier is still untrained.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    chains = build_chains(situation, "GALAXY")
    num_classes, reach = len(chains.order), 1
    free, rows = set(range(len(situation.labeled), len(chains.indices))), []
    for turn in range(budget):
        c = turn % num_classes
        rank = middle_of_shortest_path(chains.state[c], reach)
        if rank is None:
            reach += 1
            rank = middle_of_shortest_path(chains.state[c], reach)
        row = int(chains.order[c, rank]) if rank is not None else _draw_row(free, generator)
        rows.append(row)
        free.remove(row)
        chains.query([row])
    return Choice([chains.indices[row] for row in rows], passes=len(chains.indices))


@dataclass(frozen=True, eq=False)
class Chains:
    """One chain of all images per class, with the answers so far. `query` updates `state` in place."""

    indices: list[int]
    """Pool index of each row; the labeled images come first."""
    ask: Oracle
    labels: Sequence[int | None]
    """Labels of the rows that were labeled before the round."""
    order: np.ndarray
    """The row at each (class, rank)."""
    rank: np.ndarray
    """The rank of each (class, row)."""
    state: np.ndarray
    """UNKNOWN, NO or YES for each (class, rank)."""

    def query(self, rows: Sequence[int]) -> None:
        """Asks the oracle about these rows and records the answers in all chains."""
        self.record(rows, self.ask([self.indices[row] for row in rows]))

    def query_ranks(self, c: int, ranks: np.ndarray) -> list[int]:
        """Queries the rows at these ranks in the chain of class `c` and returns the rows."""
        rows = self.order[c, ranks].tolist()
        self.query(rows)
        return rows

    def record(self, rows: Sequence[int], labels: Sequence[int | None]) -> None:
        """Records labels in all chains; a row without an answer counts as NO for every class."""
        for row, label in zip(rows, labels, strict=True):
            for c in range(len(self.state)):
                self.state[c, self.rank[c, row]] = YES if c == label else NO


def build_chains(situation: Situation, name: str, most_likely_first: bool = False) -> Chains:
    """Returns the chains of a situation; raises ArgumentError with the method's name if there is no oracle."""
    if situation.ask is None:
        raise ArgumentError(
            f"{name} learns from answers within a round, so it needs an oracle. Pass one as Situation(ask=...)."
        )
    indices = [*situation.labeled, *situation.unlabeled]
    _, logits = last_features(situation, indices)
    order = sort_chains(logits.softmax(dim=1).double().cpu().numpy())
    order = np.ascontiguousarray(order[:, ::-1]) if most_likely_first else order
    labels = list(situation.labels) or situation.ask(list(situation.labeled))
    state = np.full(order.shape, UNKNOWN)
    chains = Chains(indices, situation.ask, labels, order, order.argsort(axis=1), state)
    chains.record(range(len(labels)), labels)
    return chains


def sort_chains(probability_NC: np.ndarray) -> np.ndarray:
    """Returns, for each class, the rows sorted by p_c minus the largest p; the most likely images come last."""
    best = probability_NC.max(axis=1, keepdims=True)
    return (probability_NC - best + 1e-8 * best).T.argsort(axis=1, kind="stable")


def middle_of_shortest_path(state_N: np.ndarray, reach: int) -> int | None:
    """Returns the middle of the shortest path over unlabeled ranks between a YES and a NO, or None without a path.

    Ranks up to `reach` apart are connected, except a YES to a NO.
    """
    between = (state_N == UNKNOWN) & _within_reach(state_N == YES, reach) & _within_reach(state_N == NO, reach)
    if between.any():
        return int(between.argmax())
    known = np.flatnonzero(state_N != UNKNOWN)
    is_gap = (state_N[known[1:]] != state_N[known[:-1]]) & (np.diff(known) > reach)
    if not is_gap.any():
        return None
    gaps = np.where(is_gap, np.diff(known), len(state_N) + 1)
    low, high = known[gaps.argmin()], known[gaps.argmin() + 1]
    num_nodes = -(-(high - low) // reach) + 1
    no, step = (low, reach) if state_N[low] == NO else (high, -reach)
    return int(no + step * (num_nodes // 2))


def _within_reach(mask: np.ndarray, reach: int) -> np.ndarray:
    """Returns which ranks are within reach of a rank in the mask."""
    total = np.concatenate([[0], np.cumsum(mask)])
    ranks = np.arange(len(mask))
    return total[np.minimum(ranks + reach + 1, len(mask))] > total[np.maximum(ranks - reach, 0)]


def _draw_row(free: set[int], generator: torch.Generator) -> int:
    """Draws one of the rows at random, regardless of the order of the set."""
    ordered = sorted(free)
    return ordered[int(torch.randint(len(ordered), (), generator=generator))]
