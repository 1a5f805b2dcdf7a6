"""Trainings are grouped by what they have in common."""

from dataclasses import replace

from rarefish.jobs import alike
from rarefish.training import Training
from tests.test_packing import make_jobs


def test_only_trainings_of_one_kind_go_together() -> None:
    training = Training(epochs=1, batch_size=5)
    jobs = [*make_jobs(2, 10, training), *make_jobs(1, 15, training), *make_jobs(1, 10, replace(training, shift=1))]
    assert [len(group) for group in alike(jobs)] == [2, 1, 1]
