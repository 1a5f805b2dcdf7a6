"""The loop: select → ask → train → evaluate, one `Round` at a time."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset

from rarefish.acquisitions import Choice, Situation
from rarefish.active_learning.resume import to_choice
from rarefish.active_learning.task import State, Task
from rarefish.data.lazy_images import Images, Stored
from rarefish.data.reader import Data, Reader, label_of, labels_of, lies_in_memory
from rarefish.errors import ArgumentError
from rarefish.training.evaluation import Score, evaluate
from rarefish.training.jobs import FitAll, Job, fit_each

AT_ONCE = Reader(batch_size=10_000, progress=False)
"""A peek after every epoch is many small passes: few large batches make them bearable."""


def jobs_of(task: Task, state: State, seen: list[float]) -> list[Job]:
    """The trainings of a state's models on all that is labeled; a peek at the test set adds to `seen`."""
    images, labels = lessons(task, state)
    if not len(labels):
        return []  # nothing was answered yet, so there is nothing to learn from
    reader = AT_ONCE if lies_in_memory(task.test) else task.reader
    # What was seen in epochs before a kill would be lost.
    files = None if task.peek else task.under_way

    def peek(model: nn.Module) -> None:
        seen.append(evaluate(model, task.test, task.num_classes, reader).accuracy)

    return [
        Job(
            model,
            images,
            labels,
            task.training,
            chance(task.seed, state.number, f"train {member}"),
            on_epoch=peek if task.peek and member == 0 else None,
            checkpoint=files.training(state.number, member) if files else None,
        )
        for member, model in enumerate(state.models)
    ]


def lessons(task: Task, state: State) -> tuple[Images, Tensor]:
    """What a state's models learn from, and its labels; images in files are read when their turn comes."""
    labels, trusted = torch.tensor(state.labels, dtype=torch.long), task.validation
    if task.learns_validation:
        own = labels_of(trusted)
        assert own is not None, "a validation set that is learned from has a list of labels"
        labels = torch.cat([labels, own])
    if not lies_in_memory(task.pool):
        more = range(len(task.pool), len(task.pool) + len(trusted)) if task.learns_validation else ()
        both: ConcatDataset[object] = ConcatDataset([task.pool, trusted])  # pyright: ignore[reportArgumentType]
        return Stored(both if more else task.pool, [*state.labeled, *more], task.workers), labels
    batches = [*AT_ONCE.read(task.pool, state.labeled), *(AT_ONCE.read(trusted) if task.learns_validation else ())]
    return torch.cat([batch.images for batch in batches]) if batches else torch.empty(0), labels


def chance(seed: int, number: int, purpose: str) -> torch.Generator:
    """A generator of its own for each step of each round: a run that is taken up again draws what it would have drawn.

    All methods share it, so their differences are paired by seed.
    """
    code = sum(ord(letter) * 31**place for place, letter in enumerate(purpose))
    return torch.Generator().manual_seed((seed * 1_000_003 + number * 7919 + code) % 2**63)


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
        choice, select_s = choose_once(task, state)
        choices.append(choice)
        seconds.append(select_s)
        bought.append(ask(task, state, choice))
    peeks: list[list[float]] = [[] for _ in tasks]
    began = time.perf_counter()
    fit_all(
        [job for task, (_, state), seen in zip(tasks, bought, peeks, strict=True) for job in jobs_of(task, state, seen)]
    )
    each_s = (time.perf_counter() - began) / sum(len(state.models) for _, state in bought)
    return [
        Round(
            *(choice, answers, tested, select_s, each_s * len(state.models), state),
            *(validate(task, state, tested), max(seen, default=None)),
        )
        for task, choice, (answers, state), select_s, seen, tested in zip(
            *(tasks, choices, bought, seconds, peeks),
            [mean_score(task, state, task.test) for task, (_, state) in zip(tasks, bought, strict=True)],
            strict=True,
        )
    ]


def choose_once(task: Task, state: State) -> tuple[Choice, float]:
    """What is chosen, and the seconds that took; a choice that a killed run came to is not made again."""
    number, taken, files = state.number + 1, [*state.labeled, *state.refused], task.under_way
    kept = task.executor.agree(files.read_choice(number, taken)) if files else None
    if kept:
        return to_choice(kept, task.pool, task.validation), kept["seconds"]
    began = time.perf_counter()
    choice = choose(task, state)
    seconds = time.perf_counter() - began
    if files:
        task.executor.once(lambda: files.keep_choice(number, taken, choice, seconds))
    return choice, seconds


def choose(task: Task, state: State) -> Choice:
    """What the acquisition wants to have labeled; complains where that is not `budget` new images."""
    here = Situation(
        *(state.models, task.pool, task.validation, state.labeled, state.refused, task.batch_size),
        labels=state.labels,
        ask=task.oracle,
        executor=task.executor,
        workers=task.workers,
        precision=task.training.precision,
    )
    choice = task.acquire(here, task.budget, chance(task.seed, state.number, "select"))
    choice = replace(choice, indices=task.executor.agree(choice.indices))
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


def rebuild(task: Task, chosen: Sequence[Sequence[int]]) -> State:
    """The state after cold rounds that chose these; its models have still to learn what the last round taught them."""
    assert not task.warm, "a warm round learns on from weights that only its state has"
    state = begin(task)
    for indices in chosen:
        _, state = ask(task, state, Choice(list(indices)))
    return state


def is_yardstick(task: Task) -> bool:
    """Whether the validation set can tell how well the model does."""
    return not task.learns_validation and label_of(task.validation[0]) is not None


def validate(task: Task, state: State, tested: Score) -> Score | None:
    """How well the model does on the validation set, where that can tell."""
    if not is_yardstick(task):
        return None
    return tested if task.validation is task.test else mean_score(task, state, task.validation)


def mean_score(task: Task, state: State, data: Data) -> Score:
    """The mean over members; the predictions are the first one's."""
    # In float32: of two answers that bfloat16 cannot tell apart the first would win, and the first classes are common.
    scores = [evaluate(model, data, task.num_classes, task.reader) for model in state.models]
    recall_C = torch.stack([score.recall for score in scores]).mean(dim=0)
    return Score(sum(score.accuracy for score in scores) / len(scores), recall_C, scores[0].prediction)


def check_supply(task: Task, num_rounds: int, state: State) -> None:
    wanted = (num_rounds - state.number) * task.budget
    left = len(task.pool) - len(state.labeled) - len(state.refused)
    if wanted > left:
        raise ArgumentError(
            f"{num_rounds - state.number} rounds of {task.budget} labels need {wanted} images; the pool has {left}. "
            "Lower the budget or the number of rounds."
        )
