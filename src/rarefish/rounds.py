"""The loop: select → ask → train → evaluate, one `Round` at a time."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from rarefish.acquisitions import Acquisition, Choice, Situation
from rarefish.errors import ArgumentError
from rarefish.jobs import FitAll, Job, fit_each
from rarefish.oracles import Oracle
from rarefish.reading import Data, Reader, label_of
from rarefish.team import Alone, Team
from rarefish.training import Score, Training, evaluate

AT_ONCE = Reader(batch_size=10_000, progress=False)
"""A peek after every epoch is many small passes: few large batches make them bearable."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What stays the same through all rounds."""

    pool: Data
    validation: Data
    test: Data
    starts: tuple[nn.Module, ...]
    """The untrained model, or one for each member of an ensemble; never changed."""
    acquire: Acquisition
    oracle: Oracle
    budget: int
    num_classes: int
    name: str = "the acquisition"
    training: Training = field(default_factory=Training)
    warm: bool = False
    """Train on from the round before; cold (the default) trains every round from the start."""
    seed: int = 0
    batch_size: int = 1000
    learns_validation: bool = False
    """The model learns from the validation set as well: what a skeptic would try first."""
    team: Team = field(default_factory=Alone)
    """Who shares the work of choosing; all of them go through the same rounds."""
    peek: bool = False
    """Look at the test set after every epoch, to tell the best one: as the paper counts, not as we do."""


@dataclass(frozen=True)
class State:
    """Where a task stands after some rounds: all that the next one needs."""

    number: int
    models: tuple[nn.Module, ...] = field(repr=False)
    labeled: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()


@dataclass(frozen=True)
class Round:
    """What one round chose, what that cost, and how well the model does after it."""

    choice: Choice
    answers: tuple[int | None, ...]
    """The oracle's, in the order of `choice.indices`."""
    score: Score
    """Of the model; of an ensemble the mean over its members."""
    select_s: float
    train_s: float
    state: State
    validation: Score | None = None
    """The same on the validation set, where that has labels and is not learned from."""
    best_accuracy: float | None = None
    """Over all epochs, on the test set, where the task peeks."""

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def labels_spent(self) -> int:
        """Images that the oracle was asked for, whether it had an answer or not."""
        return len(self.state.labels) + len(self.state.refused)


def run_rounds(task: Task, num_rounds: int, state: State | None = None, fit_all: FitAll = fit_each) -> Iterator[Round]:
    """Rounds one after another, from the beginning or from a state that an earlier run came to."""
    state = state or begin(task)
    check_supply(task, num_rounds, state)
    while state.number < num_rounds:
        (finished,) = advance([task], [state], fit_all)
        yield finished
        state = finished.state


def begin(task: Task) -> State:
    """The state before the first round."""
    return State(0, task.starts)


def advance(tasks: Sequence[Task], states: Sequence[State], fit_all: FitAll = fit_each) -> list[Round]:
    """One round of each task; all their trainings are handed to `fit_all` together."""
    choices, bought, seconds = [], [], []
    for task, state in zip(tasks, states, strict=True):
        began = time.perf_counter()
        choices.append(choose(task, state))
        seconds.append(time.perf_counter() - began)
        bought.append(ask(task, state, choices[-1]))
    peeks: list[list[float]] = [[] for _ in tasks]
    began = time.perf_counter()
    fit_all(
        [job for task, (_, state), seen in zip(tasks, bought, peeks, strict=True) for job in jobs_of(task, state, seen)]
    )
    train_s = (time.perf_counter() - began) / len(tasks)
    return [
        Round(
            choice,
            answers,
            mean_score(task, state, task.test),
            select_s,
            train_s,
            state,
            mean_score(task, state, task.validation) if is_yardstick(task) else None,
            max(seen, default=None),
        )
        for task, choice, (answers, state), select_s, seen in zip(tasks, choices, bought, seconds, peeks, strict=True)
    ]


def choose(task: Task, state: State) -> Choice:
    """What the acquisition wants to have labeled; complains where that is not `budget` new images."""
    here = Situation(
        *(state.models, task.pool, task.validation, state.labeled, state.refused, task.batch_size),
        labels=state.labels,
        ask=task.oracle,
        team=task.team,
        precision=task.training.precision,
    )
    choice = task.acquire(here, task.budget, chance(task.seed, state.number, "select"))
    choice = replace(choice, indices=task.team.agree(choice.indices))
    new = set(choice.indices) - {*state.labeled, *state.refused}
    if len(choice.indices) != task.budget or len(new) != task.budget:
        raise ArgumentError(
            f"{task.name} returned {len(choice.indices)} images of which {len(new)} are new and distinct; it was asked "
            f"for {task.budget}."
        )
    return choice


def ask(task: Task, state: State, choice: Choice) -> tuple[tuple[int | None, ...], State]:
    """The oracle's answers, and the state with fresh models that are to learn from them."""
    answers = tuple(task.oracle(choice.indices))
    told = [(i, label) for i, label in zip(choice.indices, answers, strict=True) if label is not None]
    silent = [i for i, label in zip(choice.indices, answers, strict=True) if label is None]
    return answers, State(
        state.number + 1,
        tuple(copy.deepcopy(model) for model in (state.models if task.warm else task.starts)),
        (*state.labeled, *(i for i, _ in told)),
        (*state.labels, *(label for _, label in told)),
        (*state.refused, *silent),
    )


def jobs_of(task: Task, state: State, seen: list[float]) -> list[Job]:
    """The trainings of a state's models on all that is labeled; a peek at the test set adds to `seen`."""
    batches = list(AT_ONCE.read(task.pool, list(state.labeled)))
    trusted = list(AT_ONCE.read(task.validation, labels=True)) if task.learns_validation else []
    if not batches and not trusted:
        return []  # nothing was answered yet, so there is nothing to learn from
    images = torch.cat([batch.images for batch in [*batches, *trusted]])
    labels = torch.tensor(state.labels, dtype=torch.long)
    labels = torch.cat([labels, *(batch.labels.cpu() for batch in trusted if batch.labels is not None)])

    def peek(model: nn.Module) -> None:
        seen.append(evaluate(model, task.test, task.num_classes, AT_ONCE).accuracy)

    return [
        Job(
            model,
            images,
            labels,
            task.training,
            chance(task.seed, state.number, f"train {member}"),
            on_epoch=peek if task.peek and member == 0 else None,
        )
        for member, model in enumerate(state.models)
    ]


def is_yardstick(task: Task) -> bool:
    """Whether the validation set can tell how well the model does."""
    return not task.learns_validation and label_of(task.validation[0]) is not None


def mean_score(task: Task, state: State, data: Data) -> Score:
    """The mean over members; the predictions are the first one's."""
    reader = Reader(batch_size=task.batch_size, progress=False)
    scores = [evaluate(model, data, task.num_classes, reader, task.training.precision) for model in state.models]
    recall_C = torch.stack([score.recall for score in scores]).mean(dim=0)
    return Score(sum(score.accuracy for score in scores) / len(scores), recall_C, scores[0].prediction)


def chance(seed: int, number: int, purpose: str) -> torch.Generator:
    """A generator of its own for each step of each round: a run that is taken up again draws what it would have drawn.

    All methods share it, so their differences are paired by seed.
    """
    code = sum(ord(letter) * 31**place for place, letter in enumerate(purpose))
    return torch.Generator().manual_seed((seed * 1_000_003 + number * 7919 + code) % 2**63)


def check_supply(task: Task, num_rounds: int, state: State) -> None:
    wanted = (num_rounds - state.number) * task.budget
    left = len(task.pool) - len(state.labeled) - len(state.refused)
    if wanted > left:
        raise ArgumentError(
            f"{num_rounds - state.number} rounds of {task.budget} labels need {wanted} images; the pool has {left}. "
            "Lower the budget or the number of rounds."
        )
