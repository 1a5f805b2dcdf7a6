"""Many training jobs at once equal each job alone."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rarefish.models.networks import draw_weights
from rarefish.training.config import Training
from rarefish.training.jobs import Job, fit_each
from rarefish.training.loop import fit
from rarefish.training.rotation import show_rotations
from rarefish.training.vmapped import fit_vmapped
from tests.cases import IMAGE, NUM_CLASSES, Plain


def make_jobs(count: int, num_images: int, training: Training) -> list[Job]:
    jobs = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        model = draw_weights(Plain(), generator).double()
        images = torch.randn(num_images, *IMAGE, generator=generator).double()
        labels = torch.randint(NUM_CLASSES, (num_images,), generator=generator)
        jobs.append(Job(model, images, labels, training, generator))
    return jobs


@pytest.mark.parametrize("num_images", [20, 23])
@pytest.mark.parametrize(("size", "fill"), [(2, False), (2, True), (7, True), (50, None)])
def test_equals_one_after_another(num_images: int, size: int, fill: bool | None) -> None:
    training = Training(epochs=4, batch_size=5, step_size=2, momentum=0.7)
    alone, packed = (make_jobs(3, num_images, training) for _ in range(2))
    fit_each(alone)
    fit_vmapped(packed, size, fill)
    for a, b in zip(alone, packed, strict=True):
        for one, other in zip(a.model.parameters(), b.model.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
        assert not b.model.training
        assert torch.equal(torch.rand(3, generator=a.generator), torch.rand(3, generator=b.generator))


def test_jobs_of_different_sizes_are_packed_apart() -> None:
    training = Training(epochs=1, batch_size=5)
    alone, packed = ([*make_jobs(2, 10, training), *make_jobs(1, 15, training)] for _ in range(2))
    fit_each(alone)
    fit_vmapped(packed)
    for a, b in zip(alone, packed, strict=True):
        torch.testing.assert_close(a.model.state_dict(), b.model.state_dict(), atol=1e-9, rtol=0)


def test_rotations_can_be_presented() -> None:
    training = Training(epochs=2, batch_size=4)
    (job,) = make_jobs(1, 8, training)
    twin = copy.deepcopy(job.model)
    order = torch.Generator()
    order.set_state(job.generator.get_state())
    fit_vmapped([replace(job, present=show_rotations)])
    fit(twin, job.images, job.labels, training, order, show_rotations)
    torch.testing.assert_close(job.model.state_dict(), twin.state_dict(), atol=1e-9, rtol=0)


def test_running_statistics_are_learned_too() -> None:
    def make() -> list[Job]:
        jobs = make_jobs(2, 8, Training(epochs=2, batch_size=4))
        for job in jobs:
            assert isinstance(job.model, Plain)
            job.model.conv1 = nn.Sequential(job.model.conv1, nn.BatchNorm2d(5).double())  # pyright: ignore[reportAttributeAccessIssue]
        return jobs

    alone, packed = make(), make()
    fit_each(alone)
    fit_vmapped(packed)
    for a, b in zip(alone, packed, strict=True):
        torch.testing.assert_close(a.model.state_dict(), b.model.state_dict(), atol=1e-9, rtol=0)


def test_each_epoch_can_be_listened_to() -> None:
    def make(heard: list[Tensor]) -> list[Job]:
        jobs = make_jobs(2, 8, Training(epochs=3, batch_size=4))
        return [jobs[0], replace(jobs[1], on_epoch=lambda m: heard.append(m.state_dict()["fc.bias"].clone()))]

    alone, packed = [], []
    fit_each(make(alone))
    fit_vmapped(make(packed))
    assert len(alone) == len(packed) == 3
    for one, other in zip(alone, packed, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
