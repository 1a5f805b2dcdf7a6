"""A recorded step equals the step alone, replayed or not."""

import copy
import gc
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rarefish.ops.cuda_graph import WARM_UP, RecordedStep, no_garbage_collection

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def learner(model: nn.Module) -> RecordedStep:
    rate = torch.tensor(0.1, device=next(model.parameters()).device)

    def step(images: Tensor, labels: Tensor, new_rate: Tensor) -> None:
        rate.copy_(new_rate)
        model.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(rate * parameter.grad)

    return RecordedStep(step)


@pytest.mark.parametrize("device", DEVICES)
def test_equals_the_step_alone(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    twin = copy.deepcopy(model)
    repeated, plain = learner(model), learner(twin)
    for turn in range(3 * WARM_UP):
        images, labels = torch.randn(5, 4, device=device), torch.randint(3, (5,), device=device)
        rate = torch.tensor(0.1 / (1 + turn), device=device)
        repeated(images, labels, rate)
        plain.step(images, labels, rate)
    assert repeated.calls == 3 * WARM_UP
    assert (repeated.graph is not None) == (device == "cuda")
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), atol=1e-6, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_step_that_reads_its_values_runs_without_a_graph() -> None:
    total = torch.zeros((), device="cuda")

    def step(value: Tensor) -> None:
        total.add_(float(value))

    repeated = RecordedStep(step)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for turn in range(10):
            repeated(torch.tensor(float(turn), device="cuda"))
    assert float(total) == sum(range(10))
    assert "Cannot record this step" in str(said[0].message)


def test_nothing_is_collected_while_recording() -> None:
    assert gc.isenabled()
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="badly"), no_garbage_collection():
        raise ValueError("badly recorded")
    assert gc.isenabled()
