"""Trainings are grouped by what they have in common."""

from dataclasses import replace

from torch import nn

from rarefish.training.config import Training
from rarefish.training.jobs import group_compatible
from tests.training.test_vmapped import make_jobs


def test_only_trainings_of_one_kind_go_together() -> None:
    training = Training(epochs=1, batch_size=5)
    jobs = [*make_jobs(2, 10, training), *make_jobs(1, 15, training), *make_jobs(1, 10, replace(training, shift=1))]
    assert [len(group) for group in group_compatible(jobs)] == [2, 1, 1]


def test_networks_of_one_kind_and_two_sizes_go_apart() -> None:
    jobs = make_jobs(2, 10, Training(epochs=1, batch_size=5))
    models = [nn.Sequential(nn.Flatten(), nn.Linear(jobs[0].tensor[0].numel(), width)) for width in (3, 4)]
    assert len(group_compatible([replace(job, model=model) for job, model in zip(jobs, models, strict=True)])) == 2
