"""The trusted posterior: its prior against a mixture whose shares are known, its parts against loops."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rarefish import describe, select
from rarefish.calibration import estimate_prior
from rarefish.errors import ArgumentError, LabelError
from rarefish.features import View
from rarefish.posterior import Evidence, Posterior, gather
from rarefish.reading import Reader
from tests.cases import Plain, blobs, exact_posterior, labeled

CPU = torch.device("cpu")
QUICK = Posterior(steps=60, batch_size=32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_learns_the_posterior_under_the_pools_shares() -> None:
    torch.manual_seed(0)
    images, labels = blobs([1 / 3, 1 / 3, 1 / 3], 600)
    pool, truth = blobs([0.6, 0.38, 0.02], 4000, seed=5)
    evidence = Evidence(
        nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3)),
        images,
        labels,
        torch.full((3,), 1 / 3),
        pool,
        seeded(),
        CPU,
    )
    evidence.model.requires_grad_(False)  # as a model comes that was only meant to be asked
    before = copy.deepcopy(evidence.model.state_dict())
    learned = Posterior(steps=300)(evidence)
    found = learned.probabilities(pool)
    view = View(pool, torch.empty(0), ())
    assert torch.equal(learned(view, None, lambda _: view), found.argmax(dim=1))
    best = exact_posterior(pool) * (truth.bincount(minlength=3) / 4000)
    best = best / best.sum(dim=1, keepdim=True)
    assert (found - best).abs().mean() < 0.03
    is_rare, chosen = truth == 2, found[:, 2].topk(40).indices
    assert is_rare[chosen].float().mean() > 0.9 * is_rare[best[:, 2].topk(40).indices].float().mean()
    assert all(torch.equal(value, before[name]) for name, value in evidence.model.state_dict().items())


def test_evidence_is_the_validation_set_and_what_was_bought() -> None:
    validation, pool = labeled(12, 2), labeled(30, 1)
    bought = {4: 2, 9: 0}
    left = [i for i in range(30) if i not in bought]
    evidence = gather(Plain(), validation, pool, left, bought, Reader(batch_size=5, progress=False), seeded())
    assert torch.equal(evidence.images, torch.cat([validation.tensors[0], pool.tensors[0][[4, 9]]]))
    assert evidence.labels.tolist() == [*validation.tensors[1].tolist(), 2, 0]
    assert torch.equal(evidence.sample, pool.tensors[0][left]) and evidence.prior.sum() == pytest.approx(1)


@pytest.mark.parametrize("batch_size", [4, 256])
def test_select_with_a_posterior(batch_size: int) -> None:
    torch.manual_seed(0)
    model, pool, validation = Plain(), labeled(40, 1), labeled(16, 2)
    before = copy.deepcopy(model.state_dict())

    def choose() -> list[int]:
        chosen = select(
            model,
            TensorDataset(pool.tensors[0]),
            validation,
            budget=6,
            layers=["conv1", "conv2"],
            labels=QUICK,
            exclude=[0],
            bought={3: 1, 7: 2},
            batch_size=batch_size,
            generator=seeded(),
            progress=False,
        )
        return chosen.indices.tolist()

    first = choose()
    assert len(set(first)) == 6 and not {0, 3, 7} & set(first)
    assert choose() == first
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()) and model.training


def test_passes_are_counted() -> None:
    # Two teachers, each: 10 steps of 8 images there and back, a fifth of the labels, the pool as a sample and whole.
    assert Posterior(steps=10, batch_size=8).passes(100, 3000) == 2 * (2 * 80 + 20 + 3000 + 3000)
    assert Posterior(teachers=1, steps=10, batch_size=8).passes(100, 50_000) == 160 + 20 + 10_000 + 50_000


class InPlace(nn.Module):
    """Scales its input where it stands, as some models do, and drops."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.mul_(2))


def test_neither_global_chance_nor_a_forbidden_gradient_nor_a_model_that_writes_on_images_matters() -> None:
    torch.manual_seed(0)
    model, (images, labels), (pool, _) = InPlace(), blobs([0.4, 0.3, 0.3], 60), blobs([0.8, 0.1, 0.1], 50, seed=3)
    before = images.clone(), pool.clone()

    def learn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        evidence = Evidence(model, images, labels, torch.full((3,), 1 / 3), pool, seeded(), CPU)
        with torch.no_grad():
            found = QUICK(evidence).probabilities(pool)
        assert torch.equal(torch.get_rng_state(), state)
        return found

    assert torch.equal(learn(1), learn(2))
    assert torch.equal(images, before[0]) and torch.equal(pool, before[1])


def test_the_floor_leaves_room_for_many_classes() -> None:
    sure = torch.full((50, 2000), 1e-9)
    sure[:, 0] = 1
    assert estimate_prior(sure, torch.full((2000,), 1 / 2000), floor=1e-3)[0] > 0.8


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="1 to 5 teachers"):
        Posterior(teachers=6)
    for labels, own in ((labeled(6, 2).tensors[1] + 7, {}), (labeled(6, 2).tensors[1], {1: 9})):
        trusted = TensorDataset(labeled(6, 2).tensors[0], labels)
        with pytest.raises(LabelError, match="classes"):
            select(Plain(), labeled(10, 1), trusted, budget=2, labels="posterior", bought=own, progress=False)
    with pytest.raises(ArgumentError, match="cannot be learned from 3 labels"):
        select(Plain(), labeled(10, 1), labeled(3, 2), budget=2, labels="posterior", progress=False)
    with pytest.raises(ArgumentError, match="A posterior is learned for a pool"):
        describe(Plain(), labeled(6, 2), labels="posterior", progress=False)
    pool, validation = labeled(10, 1), labeled(6, 2)
    with pytest.raises(ArgumentError, match="exclude or bought names 10"):
        select(Plain(), pool, validation, budget=2, labels="posterior", bought={10: 1}, progress=False)
    with pytest.raises(LabelError, match="labels='posterior' needs validation labels"):
        select(Plain(), pool, TensorDataset(validation.tensors[0]), budget=2, labels="posterior", progress=False)
