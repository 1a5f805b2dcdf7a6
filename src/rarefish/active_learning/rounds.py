"""The active learning loop: select, ask the oracle, train, evaluate; yields one `Round` at a time."""

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

LARGE_BATCHES = Reader(batch_size=10_000, progress=False)
"""For data sets in memory: few large batches keep an evaluation after every epoch cheap."""


def jobs_of(task: Task, state: State, accuracies: list[float]) -> list[Job]:
    """Returns the training jobs of a state's models on all labeled images, or none without labels.

    With `task.peek`, the test accuracy after each epoch is appended to `accuracies`.
    """
    images, labels = training_data(task, state)
    if not len(labels):
        return []
    reader = LARGE_BATCHES if lies_in_memory(task.test) else task.reader
    # A checkpoint does not hold the accuracies of earlier epochs, so a task that peeks does not resume.
    files = None if task.peek else task.round_files

    def peek(model: nn.Module) -> None:
        accuracies.append(evaluate(model, task.test, task.num_classes, reader).accuracy)

    return [
        Job(
            model,
            images,
            labels,
            task.training,
            step_generator(task.seed, state.number, f"train {member}"),
            on_epoch=peek if task.peek and member == 0 else None,
            checkpoint=files.checkpoint(state.number, member) if files else None,
        )
        for member, model in enumerate(state.models)
    ]


def training_data(task: Task, state: State) -> tuple[Images, Tensor]:
    """Returns the training images of a state and their labels. Images in files are loaded batch by batch."""
    labels, trusted = torch.tensor(state.labels, dtype=torch.long), task.validation
    if task.learns_validation:
        trusted_labels = labels_of(trusted)
        assert trusted_labels is not None, "training on the validation set requires its labels"
        labels = torch.cat([labels, trusted_labels])
    if not lies_in_memory(task.pool):
        trusted_index = range(len(task.pool), len(task.pool) + len(trusted)) if task.learns_validation else ()
        both: ConcatDataset[object] = ConcatDataset([task.pool, trusted])  # pyright: ignore[reportArgumentType]
        return Stored(both if trusted_index else task.pool, [*state.labeled, *trusted_index], task.workers), labels
    batches = list(LARGE_BATCHES.read(task.pool, state.labeled))
    if task.learns_validation:
        batches += LARGE_BATCHES.read(trusted)
    return torch.cat([batch.images for batch in batches]) if batches else torch.empty(0), labels


def step_generator(seed: int, number: int, purpose: str) -> torch.Generator:
    """Returns the random generator for one step of one round, so that a resumed run draws the same numbers.

    It does not depend on the method, so that methods can be compared in pairs with equal seeds.
    """
    code = sum(ord(letter) * 31**place for place, letter in enumerate(purpose))
    return torch.Generator().manual_seed((seed * 1_000_003 + number * 7919 + code) % 2**63)


@dataclass(frozen=True)
class Round:
    """The choice of one round, its cost, and the scores of the model after it."""

    choice: Choice
    answers: tuple[int | None, ...]
    """The oracle's answers, in the order of `choice.indices`."""
    score: Score
    """Score on the test set; for an ensemble, the mean over its members."""
    select_s: float
    train_s: float
    state: State
    validation: Score | None = None
    """Score on the validation set, if it has labels and the model does not learn from it."""
    best_accuracy: float | None = None
    """Best test accuracy over all epochs, if `task.peek` is set."""

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def labels_spent(self) -> int:
        """Number of images that the oracle was asked about, answered or not."""
        return len(self.state.labels) + len(self.state.refused)


def run_rounds(task: Task, num_rounds: int, state: State | None = None, fit_all: FitAll = fit_each) -> Iterator[Round]:
    """Runs rounds one after another, from the beginning or from the state of an earlier run."""
    state = state or begin(task)
    check_supply(task, num_rounds, state)
    while state.number < num_rounds:
        (finished,) = advance([task], [state], fit_all)
        yield finished
        state = finished.state


def begin(task: Task) -> State:
    """Returns the state before the first round."""
    return State(0, task.starts)


def advance(tasks: Sequence[Task], states: Sequence[State], fit_all: FitAll = fit_each) -> list[Round]:
    """Runs one round of each task. All trainings go to `fit_all` together."""
    choices, seconds, results = [], [], []
    for task, state in zip(tasks, states, strict=True):
        choice, select_s = choose_or_resume(task, state)
        choices.append(choice)
        seconds.append(select_s)
        results.append(ask(task, state, choice))
    accuracies: list[list[float]] = [[] for _ in tasks]
    began = time.perf_counter()
    fit_all(
        [
            job
            for task, (_, state), seen in zip(tasks, results, accuracies, strict=True)
            for job in jobs_of(task, state, seen)
        ]
    )
    seconds_per_model = (time.perf_counter() - began) / sum(len(state.models) for _, state in results)
    rounds = []
    for task, choice, (answers, state), select_s, seen in zip(
        tasks, choices, results, seconds, accuracies, strict=True
    ):
        score = mean_score(task, state, task.test)
        rounds.append(
            Round(
                choice=choice,
                answers=answers,
                score=score,
                select_s=select_s,
                train_s=seconds_per_model * len(state.models),
                state=state,
                validation=validate(task, state, score),
                best_accuracy=max(seen, default=None),
            )
        )
    return rounds


def choose_or_resume(task: Task, state: State) -> tuple[Choice, float]:
    """Returns the choice and the seconds it took. A choice saved by an interrupted run is loaded instead."""
    number, taken, files = state.number + 1, [*state.labeled, *state.refused], task.round_files
    saved = task.executor.agree(files.load_choice(number, taken)) if files else None
    if saved:
        return to_choice(saved, task.pool, task.validation), saved["seconds"]
    began = time.perf_counter()
    choice = choose(task, state)
    seconds = time.perf_counter() - began
    if files:
        task.executor.once(lambda: files.save_choice(number, taken, choice, seconds))
    return choice, seconds


def choose(task: Task, state: State) -> Choice:
    """Returns the choice of the acquisition; raises ArgumentError unless it is `budget` new images."""
    situation = Situation(
        *(state.models, task.pool, task.validation, state.labeled, state.refused, task.batch_size),
        labels=state.labels,
        ask=task.oracle,
        executor=task.executor,
        workers=task.workers,
        precision=task.training.precision,
    )
    choice = task.acquire(situation, task.budget, step_generator(task.seed, state.number, "select"))
    choice = replace(choice, indices=task.executor.agree(choice.indices))
    new = set(choice.indices) - {*state.labeled, *state.refused}
    if len(choice.indices) != task.budget or len(new) != task.budget:
        raise ArgumentError(
            f"{task.name} returned {len(choice.indices)} images of which {len(new)} are new and distinct; it was asked "
            f"for {task.budget}. An acquisition returns distinct indices from situation.unlabeled."
        )
    return choice


def ask(task: Task, state: State, choice: Choice) -> tuple[tuple[int | None, ...], State]:
    """Returns the oracle's answers, and the next state with models that are not yet trained on them."""
    answers = tuple(task.oracle(choice.indices))
    answered = [(i, label) for i, label in zip(choice.indices, answers, strict=True) if label is not None]
    refused = [i for i, label in zip(choice.indices, answers, strict=True) if label is None]
    return answers, State(
        state.number + 1,
        tuple(copy.deepcopy(model) for model in (state.models if task.warm else task.starts)),
        (*state.labeled, *(i for i, _ in answered)),
        (*state.labels, *(label for _, label in answered)),
        (*state.refused, *refused),
    )


def rebuild(task: Task, chosen: Sequence[Sequence[int]]) -> State:
    """Returns the state after cold rounds with these choices. Its models are not yet trained on the last round."""
    assert not task.warm, "a warm round starts from weights that only its state holds"
    state = begin(task)
    for indices in chosen:
        _, state = ask(task, state, Choice(list(indices)))
    return state


def can_validate(task: Task) -> bool:
    """Returns whether the validation set has labels and the model does not learn from it."""
    return not task.learns_validation and label_of(task.validation[0]) is not None


def validate(task: Task, state: State, test_score: Score) -> Score | None:
    """Returns the score on the validation set, or None if it has no labels or the model learns from it."""
    if not can_validate(task):
        return None
    return test_score if task.validation is task.test else mean_score(task, state, task.validation)


def mean_score(task: Task, state: State, data: Data) -> Score:
    """Returns the mean score over members, with the predictions of the first member."""
    # In float32: bfloat16 rounds close logits to ties, which the first class wins, and the first classes are common.
    scores = [evaluate(model, data, task.num_classes, task.reader) for model in state.models]
    recall_C = torch.stack([score.recall for score in scores]).mean(dim=0)
    return Score(sum(score.accuracy for score in scores) / len(scores), recall_C, scores[0].prediction)


def check_supply(task: Task, num_rounds: int, state: State) -> None:
    """Raises ArgumentError if the pool has too few images left for all rounds."""
    needed = (num_rounds - state.number) * task.budget
    left = len(task.pool) - len(state.labeled) - len(state.refused)
    if needed > left:
        raise ArgumentError(
            f"{num_rounds - state.number} rounds of {task.budget} labels need {needed} images; the pool has {left}. "
            "Lower the budget or the number of rounds."
        )
