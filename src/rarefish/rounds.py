"""The loop: select → ask → train → evaluate, one `Round` at a time."""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from rarefish.acquisitions import Acquisition, Choice, Situation
from rarefish.errors import ArgumentError
from rarefish.oracles import Oracle
from rarefish.reading import Data
from rarefish.training import Score, Training, evaluate, fit, read_images


@dataclass(frozen=True)
class Round:
    """What one round chose, what that cost, and how well the model does after it."""

    number: int
    choice: Choice
    labels: tuple[int, ...]
    """The oracle's answers, in the order of `choice.indices`."""
    labels_spent: int
    score: Score
    select_s: float
    train_s: float
    model: nn.Module = field(repr=False)


def run_rounds(
    start: nn.Module,
    pool: Data,
    validation: Data,
    test: Data,
    acquire: Acquisition,
    oracle: Oracle,
    *,
    num_rounds: int,
    budget: int,
    num_classes: int,
    generator: torch.Generator,
    training: Training | None = None,
    warm: bool = False,
) -> Iterator[Round]:
    """Rounds one after another; `start` is not touched.

    Cold (the default) trains every round from `start`; warm goes on from the round before.
    """
    if num_rounds * budget > len(pool):
        raise ArgumentError(
            f"{num_rounds} rounds of {budget} labels need {num_rounds * budget} images; the pool has {len(pool)}. "
            "Lower the budget or the number of rounds."
        )
    training = training or Training()
    model, labeled, labels = copy.deepcopy(start), [], []
    for number in range(1, num_rounds + 1):
        began = time.perf_counter()
        choice = acquire(Situation(model, pool, validation, tuple(labeled)), budget, generator)
        selected = time.perf_counter()
        answers = oracle(choice.indices)
        labeled, labels = [*labeled, *choice.indices], [*labels, *answers]
        model = copy.deepcopy(model if warm else start)
        fit(model, read_images(pool, labeled), torch.tensor(labels), training, generator)
        trained = time.perf_counter()
        score = evaluate(model, test, num_classes)
        yield Round(number, choice, tuple(answers), len(labels), score, selected - began, trained - selected, model)
