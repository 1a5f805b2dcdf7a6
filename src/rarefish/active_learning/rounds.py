"""The active learning loop: select, ask the oracle, train, evaluate; yields one `Round` at a time."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset

from rarefish.acquisitions.interface import Acquisition, Choice, Situation
from rarefish.active_learning.resume import RoundFiles, to_choice
from rarefish.data.lazy_images import Images, Stored
from rarefish.data.reader import Data, Reader, label_of, labels_of, lies_in_memory
from rarefish.errors import ArgumentError
from rarefish.training.config import Training
from rarefish.training.evaluation import Score, evaluate
from rarefish.training.jobs import FitAll, Job, fit_each

LARGE_BATCHES = Reader(batch_size=10_000, progress=False)
"""For datasets in memory: with few large batches, an evaluation after every epoch is cheap."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The situation before the first round, the test set, and the settings that are the same for all rounds."""

    start: Situation
    """The initial situation. Its models are untrained; they are copied and never changed. Its `ask` is the oracle."""
    test: Data
    acquire: Acquisition
    budget: int
    num_classes: int
    name: str = "the acquisition"
    training: Training = field(default_factory=Training)
    warm: bool = False
    """Start each training run from the weights of the previous round instead of the untrained model."""
    seed: int = 0
    learns_validation: bool = False
    """Train on the validation set as well, as a baseline."""
    peek: bool = False
    """Evaluate on the test set after every epoch and report the best epoch, as in the paper."""
    round_files: RoundFiles | None = None
    """Files from which an interrupted round resumes, or None to keep no files."""

    def __post_init__(self) -> None:
        if self.start.ask is None:
            raise ArgumentError("A task needs an oracle that labels the chosen images. Pass one as Situation(ask=...).")

    @property
    def reader(self) -> Reader:
        """The reader for passes without training over a dataset."""
        return Reader(batch_size=min(1000, self.start.batch_size), num_workers=self.start.workers, progress=False)


def jobs_of(task: Task, situation: Situation, accuracies: list[float]) -> list[Job]:
    """Returns the training jobs of a situation's models on all labeled images; none if there are no labels.

    With `task.peek`, the test accuracy after each epoch is appended to `accuracies`.
    """
    images, labels = training_data(task, situation)
    if not len(labels):
        return []
    reader = LARGE_BATCHES if lies_in_memory(task.test) else task.reader
    # A checkpoint does not contain the accuracies of earlier epochs, so a task with `peek` does not resume.
    files = None if task.peek else task.round_files

    def peek(model: nn.Module) -> None:
        accuracies.append(evaluate(model, task.test, task.num_classes, reader).accuracy)

    return [
        Job(
            model,
            images,
            labels,
            task.training,
            step_generator(task.seed, situation.finished_rounds, f"train {member}"),
            on_epoch=peek if task.peek and member == 0 else None,
            checkpoint=files.checkpoint(situation.finished_rounds, member) if files else None,
        )
        for member, model in enumerate(situation.models)
    ]


def training_data(task: Task, situation: Situation) -> tuple[Images, Tensor]:
    """Returns the training images of a situation and their labels. Images in files are loaded batch by batch."""
    pool, trusted = situation.pool, situation.validation
    labels = torch.tensor(situation.labels, dtype=torch.long)
    if task.learns_validation:
        trusted_labels = labels_of(trusted)
        assert trusted_labels is not None, "training on the validation set requires its labels"
        labels = torch.cat([labels, trusted_labels])
    if not lies_in_memory(pool):
        trusted_index = range(len(pool), len(pool) + len(trusted)) if task.learns_validation else ()
        both: ConcatDataset[object] = ConcatDataset([pool, trusted])  # pyright: ignore[reportArgumentType]
        return Stored(both if trusted_index else pool, [*situation.labeled, *trusted_index], situation.workers), labels
    batches = list(LARGE_BATCHES.read(pool, situation.labeled))
    if task.learns_validation:
        batches += LARGE_BATCHES.read(trusted)
    return torch.cat([batch.images for batch in batches]) if batches else torch.empty(0), labels


def step_generator(seed: int, number: int, purpose: str) -> torch.Generator:
    """Returns the random generator for one step of a round, so that a resumed run draws the same numbers.

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
    """Score on the test set, or its mean over the members of an ensemble."""
    select_s: float
    train_s: float
    situation: Situation
    """The situation after the round: the trained models and all labels so far."""
    validation: Score | None = None
    """Score on the validation set, if it has labels and the model is not trained on it."""
    best_accuracy: float | None = None
    """Best test accuracy over all epochs, if `task.peek` is set."""

    @property
    def number(self) -> int:
        return self.situation.finished_rounds

    @property
    def labels_spent(self) -> int:
        """Number of images that the oracle was asked about, answered or not."""
        return len(self.situation.labels) + len(self.situation.refused)


def run_rounds(
    task: Task, num_rounds: int, situation: Situation | None = None, fit_all: FitAll = fit_each
) -> Iterator[Round]:
    """Yields rounds one after another, from the start or from the situation in which an earlier run ended."""
    situation = situation or task.start
    check_supply(task, num_rounds, situation)
    while situation.finished_rounds < num_rounds:
        (finished,) = advance([task], [situation], fit_all)
        yield finished
        situation = finished.situation


def advance(tasks: Sequence[Task], situations: Sequence[Situation], fit_all: FitAll = fit_each) -> list[Round]:
    """Runs one round of each task and returns the rounds. All training jobs go to `fit_all` together."""
    choices, seconds, results = [], [], []
    for task, situation in zip(tasks, situations, strict=True):
        choice, select_s = choose_or_resume(task, situation)
        choices.append(choice)
        seconds.append(select_s)
        results.append(ask(task, situation, choice))
    accuracies: list[list[float]] = [[] for _ in tasks]
    began = time.perf_counter()
    fit_all(
        [
            job
            for task, (_, situation), seen in zip(tasks, results, accuracies, strict=True)
            for job in jobs_of(task, situation, seen)
        ]
    )
    seconds_per_model = (time.perf_counter() - began) / sum(len(situation.models) for _, situation in results)
    rounds = []
    for task, choice, (answers, situation), select_s, seen in zip(
        tasks, choices, results, seconds, accuracies, strict=True
    ):
        score = mean_score(task, situation, task.test)
        rounds.append(
            Round(
                choice=choice,
                answers=answers,
                score=score,
                select_s=select_s,
                train_s=seconds_per_model * len(situation.models),
                situation=situation,
                validation=validate(task, situation, score),
                best_accuracy=max(seen, default=None),
            )
        )
    return rounds


def choose_or_resume(task: Task, situation: Situation) -> tuple[Choice, float]:
    """Returns the choice and the seconds it took; loads a choice that an interrupted run saved."""
    number, taken = situation.finished_rounds + 1, [*situation.labeled, *situation.refused]
    files, executor = task.round_files, situation.executor
    saved = executor.agree(files.load_choice(number, taken)) if files else None
    if saved:
        return to_choice(saved, situation.pool, situation.validation), saved["seconds"]
    began = time.perf_counter()
    choice = choose(task, situation)
    seconds = time.perf_counter() - began
    if files:
        executor.once(lambda: files.save_choice(number, taken, choice, seconds))
    return choice, seconds


def choose(task: Task, situation: Situation) -> Choice:
    """Returns the choice of the acquisition; raises ArgumentError unless it contains `budget` new images."""
    generator = step_generator(task.seed, situation.finished_rounds, "select")
    # A copy, because its list of unlabeled images is as long as the pool and needed only for this choice.
    choice = task.acquire(replace(situation), task.budget, generator)
    choice = replace(choice, indices=situation.executor.agree(choice.indices))
    new = set(choice.indices) - {*situation.labeled, *situation.refused}
    if len(choice.indices) != task.budget or len(new) != task.budget:
        raise ArgumentError(
            f"{task.name} returned {len(choice.indices)} images, of which {len(new)} are new and distinct, instead of "
            f"{task.budget}. An acquisition must return distinct indices from situation.unlabeled."
        )
    return choice


def ask(task: Task, situation: Situation, choice: Choice) -> tuple[tuple[int | None, ...], Situation]:
    """Returns the answers of the oracle, and the next situation, whose models are not yet trained on them."""
    assert situation.ask is not None, "a task has an oracle"
    answers = tuple(situation.ask(choice.indices))
    answered = [(i, label) for i, label in zip(choice.indices, answers, strict=True) if label is not None]
    refused = [i for i, label in zip(choice.indices, answers, strict=True) if label is None]
    return answers, replace(
        situation,
        finished_rounds=situation.finished_rounds + 1,
        models=tuple(copy.deepcopy(model) for model in (situation if task.warm else task.start).models),
        labeled=(*situation.labeled, *(i for i, _ in answered)),
        labels=(*situation.labels, *(label for _, label in answered)),
        refused=(*situation.refused, *refused),
        trained_on_validation=task.learns_validation,
    )


def rebuild(task: Task, chosen: Sequence[Sequence[int]]) -> Situation:
    """Returns the situation after cold rounds with these choices; its models are not yet trained on the last one."""
    assert not task.warm, "warm rounds depend on weights, which cannot be rebuilt from choices"
    situation = task.start
    for indices in chosen:
        _, situation = ask(task, situation, Choice(list(indices)))
    return situation


def can_validate(task: Task) -> bool:
    """Returns whether the validation set has labels and the model is not trained on it."""
    return not task.learns_validation and label_of(task.start.validation[0]) is not None


def validate(task: Task, situation: Situation, test_score: Score) -> Score | None:
    """Returns the score on the validation set, or None if it has no labels or the model is trained on it."""
    if not can_validate(task):
        return None
    return test_score if situation.validation is task.test else mean_score(task, situation, situation.validation)


def mean_score(task: Task, situation: Situation, data: Data) -> Score:
    """Returns the mean score over the members, with the predictions of the first member."""
    # In float32, because bfloat16 rounds close logits to ties, which favor the first classes, and those are common.
    scores = [evaluate(model, data, task.num_classes, task.reader) for model in situation.models]
    recall_C = torch.stack([score.recall for score in scores]).mean(dim=0)
    return Score(sum(score.accuracy for score in scores) / len(scores), recall_C, scores[0].prediction)


def check_supply(task: Task, num_rounds: int, situation: Situation) -> None:
    """Raises ArgumentError if the pool has too few images left for all rounds."""
    rounds_left = num_rounds - situation.finished_rounds
    needed = rounds_left * task.budget
    left = len(situation.pool) - len(situation.labeled) - len(situation.refused)
    if needed > left:
        raise ArgumentError(
            f"{rounds_left} rounds of {task.budget} labels need {needed} images, but the pool has {left}. "
            "Lower the budget or the number of rounds."
        )
