"""The contract that every acquisition keeps, and the table of their names."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.acquisitions import ACQUISITIONS, Situation, find_acquisition
from rarefish.data.embeddings import Embeddings
from rarefish.pseudo_labels.posterior import Posterior
from tests.acquisitions.situations import (
    ANSWERS,
    FAST,
    POOL,
    VALIDATION,
    choose,
    seeded,
    situation,
    vector_situation,
    vectors,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posteriors are hardly trained: how good their answers are does not matter here."""
    monkeypatch.setattr(Posterior, "num_steps", lambda posterior, num_trusted, num_pool: 5)


class Files:
    """The pool as a dataset of files: one image at a time, with a list of labels."""

    targets = POOL.tensors[1].tolist()

    def __len__(self) -> int:
        return len(POOL)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return POOL.tensors[0][index], self.targets[index]


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("already", [(), (3, 9, 11)])
@pytest.mark.parametrize("budget", [1, 7, 27])
def test_contract(name: str, already: tuple[int, ...], budget: int) -> None:
    """The right number of distinct unlabeled images, the same for the same seed; pool and model stay unchanged."""
    here = situation(already)
    pool, model = copy.deepcopy(POOL.tensors), copy.deepcopy(here.model.state_dict())
    rng_state = torch.get_rng_state()
    chosen = choose(name, here, budget).indices
    assert len(chosen) == len(set(chosen)) == budget
    assert not set(chosen) & set(already) and set(chosen) <= set(range(30))
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert choose(name, situation(already), budget).indices == chosen
    assert all(torch.equal(a, b) for a, b in zip(pool, POOL.tensors, strict=True))
    assert all(torch.equal(value, here.model.state_dict()[name]) for name, value in model.items())
    assert here.model.training and not any(m._forward_hooks or m._forward_pre_hooks for m in here.model.modules())


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_refused_images_are_not_chosen(name: str) -> None:
    here = Situation(situation().models, POOL, VALIDATION, (3, 9), refused=(0, 1, 2), ask=ANSWERS)
    assert not {0, 1, 2, 3, 9} & set(choose(name, here, 25).indices)


@pytest.mark.parametrize(
    "name",
    [
        "least_confidence",
        "entropy",
        "variation_ratio",
        "bald",
        "mean_std",
        "badge",
        "vaal",
        "tail_first",
        "epig",
        "galaxy",
        "direct",
    ],
)
def test_a_random_first_round(name: str) -> None:
    assert choose(name, situation(()), 6, 4).indices == choose("random", situation(()), 6, 4).indices


@pytest.mark.parametrize(
    "name",
    [
        *("entropy", "variation_ratio", "badge", "core_set", "typiclust", "balanced_entropy", "epig"),
        *("max_herding", "uherding", "probcover", "dropquery", "bait"),
    ],
)
@pytest.mark.parametrize("already", [(), (3, 9, 11)])
def test_validation_images_on_which_the_model_is_trained_count_as_labeled(name: str, already: tuple[int, ...]) -> None:
    """The choice is that from a pool that begins with them, as labeled images."""
    here, count = situation(already), len(VALIDATION)
    images, labels = (torch.cat([a, b]) for a, b in zip(VALIDATION.tensors, POOL.tensors, strict=True))
    known = (*range(count), *(count + i for i in already))
    joined = replace(here, pool=TensorDataset(images, labels), labeled=known)
    expected = [i - count for i in choose(name, joined, 6).indices]
    assert choose(name, replace(here, trained_on_validation=True), 6).indices == expected


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_images_in_files_are_chosen_as_those_in_memory(name: str) -> None:
    here = situation(batch_size=7)
    assert choose(name, replace(here, pool=Files()), 6).indices == choose(name, here, 6).indices


ON_VECTORS: dict[str, dict[str, Any]] = {
    **FAST,
    # Otherwise, a copy of the head would be trained on the vectors of a TensorDataset as if they were images.
    **{f"posterior_{how}": {"labels": Posterior(network=False)} for how in ("quotas", "entropy", "likeliest")},
    "fisher": {"labels": Posterior(network=False)},
}
RUNS = [(name, ON_VECTORS.get(name, {})) for name in ACQUISITIONS if name not in ("vaal", "coverage", "coverage_true")]
RUNS += [("fisher", {"labels": "density"}), ("fisher", {"labels": "prediction", "kernel": "sum"})]


def trained(head: nn.Module) -> nn.Module:
    """The head after a few steps on the validation set, so that its predictions make sense."""
    images, labels = vectors("validation").tensors
    optimizer = torch.optim.SGD(head.parameters(), lr=0.02)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head.eval()(images), labels).backward()
        optimizer.step()
    return head.train()


def embedded(name: str) -> Embeddings:
    images, labels = vectors(name).tensors
    return Embeddings(images.numpy(), labels=labels.numpy())


@pytest.mark.parametrize(("name", "settings"), RUNS, ids=[f"{name} {settings}" for name, settings in RUNS])
@pytest.mark.parametrize("kind", ["linear", "dropout", "hidden"])
def test_embeddings_are_chosen_as_the_same_vectors_in_memory(name: str, settings: dict[str, Any], kind: str) -> None:
    """A linear head, with and without dropout, and one with a hidden layer; no class is as frequent as another."""
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 4))
    model = trained(hidden if kind == "hidden" else nn.Sequential(nn.Dropout(0.5), nn.Linear(12, 4)))
    head = model[1] if kind == "linear" else model  # pyright: ignore[reportIndexIssue]
    here = vector_situation()
    act = find_acquisition(name, **settings)
    expected = act(replace(here, models=(model,)), 17, seeded())
    there = replace(here, models=(head,), pool=embedded("pool"), validation=embedded("validation"))
    chosen = act(there, 17, seeded())
    assert chosen.indices == expected.indices and chosen.passes == expected.passes
    assert len(set(chosen.indices)) == 17 and not {*here.labeled, *here.refused} & set(chosen.indices)
