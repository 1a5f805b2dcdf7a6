"""Training jobs run in parallel equal each job alone. On a CPU a trainer has no stream and records nothing."""

import copy
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rarefish.models.networks import build_model
from rarefish.training import cuda_streams
from rarefish.training.config import Training
from rarefish.training.cuda_streams import fit_many, fit_on_streams
from rarefish.training.jobs import Job, fit_each
from rarefish.training.rotation import show_rotations
from tests.training.test_vmapped import make_jobs

PLAIN = Training(epochs=3, batch_size=5, step_size=2, momentum=0.7)
MODERN = replace(PLAIN, cosine=True, weight_decay=0.01, label_smoothing=0.1, shift=1, flip=True)


def same(alone: list[Job], beside: list[Job]) -> None:
    for a, b in zip(alone, beside, strict=True):
        torch.testing.assert_close(a.model.state_dict(), b.model.state_dict(), atol=1e-9, rtol=0)
        assert not b.model.training
        assert torch.equal(torch.rand(3, generator=a.generator), torch.rand(3, generator=b.generator))


@pytest.mark.parametrize("training", [PLAIN, MODERN])
@pytest.mark.parametrize(("num_jobs", "num_streams"), [(1, 4), (5, 2)])
def test_equals_one_after_another(training: Training, num_jobs: int, num_streams: int) -> None:
    """A trainer that is used again must keep neither weights nor momentum."""
    alone, beside = (make_jobs(num_jobs, 23, training) for _ in range(2))
    fit_each(alone)
    fit_on_streams(beside, num_streams)
    same(alone, beside)


def test_large_networks_with_norms_go_to_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> list[Job]:
        generator = torch.Generator().manual_seed(0)
        model = build_model("resnet10", 3, 3, generator).double()
        images = torch.randn(9, 3, 32, 32, generator=generator).double()
        return [Job(model, images, torch.arange(9) % 3, Training(epochs=1, batch_size=4, lr=0.01), generator)]

    alone, beside = make(), make()
    fit_each(alone)
    monkeypatch.delattr(cuda_streams, "fit_vmapped")
    fit_many(beside)
    same(alone, beside)


def test_trainers_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[cuda_streams.StreamTrainer]] = []

    class Watched(cuda_streams.StreamTrainer):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            made.append(weakref.ref(self))

    monkeypatch.setattr(cuda_streams, "StreamTrainer", Watched)
    monkeypatch.setattr(cuda_streams, "MAX_VMAPPED_WEIGHTS", 0)
    fit_many(make_jobs(3, 10, PLAIN))
    assert len(made) == 3 and not any(trainer() for trainer in made)


def test_small_networks_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cuda_streams, "fit_on_streams")
    alone, batched = (make_jobs(2, 10, PLAIN) for _ in range(2))
    fit_each(alone)
    fit_many(batched)
    same(alone, batched)


def test_each_epoch_can_be_listened_to() -> None:
    def make(heard: list[Tensor]) -> list[Job]:
        jobs = make_jobs(2, 8, PLAIN)
        return [jobs[0], replace(jobs[1], on_epoch=lambda m: heard.append(copy.deepcopy(m.state_dict()["fc.bias"])))]

    first: list[Tensor] = []
    second: list[Tensor] = []
    fit_each(make(first))
    fit_on_streams(make(second))
    assert len(first) == len(second) == 3
    torch.testing.assert_close(first, second, atol=1e-9, rtol=0)


def test_rotations_can_be_presented() -> None:
    alone, beside = ([replace(job, present=show_rotations) for job in make_jobs(2, 8, PLAIN)] for _ in range(2))
    fit_each(alone)
    fit_on_streams(beside)
    same(alone, beside)
