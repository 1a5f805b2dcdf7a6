"""Baselines without pool labels: the network trained only on the trusted images, and the posterior's classifier.

A method that learns from trusted labels must be compared with them, because anyone who may train on the trusted images
can use either of the two instead of labeling pool images.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.posterior_quotas import DEFAULT, LearnedPosterior, learn_posterior
from rarefish.active_learning.rounds import Round, Task, jobs_of, mean_score, step_generator
from rarefish.data.reader import Reader
from rarefish.pseudo_labels.posterior import Network, Posterior, Seen
from rarefish.training.evaluation import Score, evaluate, score
from rarefish.training.jobs import FitAll


def choose_nothing(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Returns an empty choice, which is the acquisition of a baseline."""
    return Choice([])


def train_on_trusted(tasks: Sequence[Task], fit_all: FitAll) -> list[Round]:
    """Returns a round per task, in which the initial network is trained on the validation set."""
    situations = [replace(task.start, models=copy.deepcopy(task.start.models)) for task in tasks]
    accuracies: list[list[float]] = [[] for _ in tasks]
    began = time.perf_counter()
    fit_all(
        [
            job
            for task, situation, seen in zip(tasks, situations, accuracies, strict=True)
            for job in jobs_of(replace(task, learns_validation=True), situation, seen)
        ]
    )
    train_s = (time.perf_counter() - began) / max(len(tasks), 1)
    return [
        Round(
            choice=Choice([]),
            answers=(),
            score=mean_score(task, situation, task.test),
            select_s=0.0,
            train_s=train_s,
            situation=situation,
            best_accuracy=max(seen, default=None),
        )
        for task, situation, seen in zip(tasks, situations, accuracies, strict=True)
    ]


def learn_posterior_alone(task: Task, *, labels: Posterior = DEFAULT, layers: Sequence[str] | None = None) -> Round:
    """Returns a round whose final model is the classifier of the posterior, learned as in the first round of `fisher`.

    The classifier is used with the class proportions of the validation set, not with those of the pool.
    """
    began = time.perf_counter()
    learned = learn_posterior(task.start, step_generator(task.seed, 0, "select"), labels, layers)
    select_s = time.perf_counter() - began
    found = score_classifier(learned, task)
    return Round(
        choice=Choice([], learned.passes), answers=(), score=found, select_s=select_s, train_s=0.0, situation=task.start
    )


@torch.no_grad()
def score_classifier(learned: LearnedPosterior, task: Task) -> Score:
    """Returns the test score of the posterior's classifier, which is a network or a head on the features."""
    answer = learned.estimate.answer
    if isinstance(answer, Network):
        return evaluate(answer.network, task.test, task.num_classes, task.reader)
    reader: Reader = task.reader
    predicted, true = [], []
    with learned.config.watching() as watch:
        for batch in reader.read(task.test, labels=True):
            assert batch.labels is not None
            view = watch(batch.images)
            predicted.append(answer(Seen(view.images, view.features_ND)).argmax(dim=1).cpu())
            true.append(batch.labels)
    return score(torch.cat(predicted), torch.cat(true).cpu(), task.num_classes)
