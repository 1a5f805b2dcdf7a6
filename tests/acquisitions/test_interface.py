"""The contract that every acquisition keeps, and the table of their names."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rarefish.acquisitions import ACQUISITIONS, Situation, find_acquisition
from rarefish.errors import ArgumentError
from tests.acquisitions.situations import ANSWERS, POOL, VALIDATION, choose, situation


class Files:
    """The pool as a data set of files: one image at a time, with a list of labels."""

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


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_images_in_files_are_chosen_as_those_in_memory(name: str) -> None:
    here = situation(batch_size=7)
    assert choose(name, replace(here, pool=Files()), 6).indices == choose(name, here, 6).indices


def test_unknown_names_get_a_hint() -> None:
    assert find_acquisition("random") is ACQUISITIONS["random"]
    with pytest.raises(ArgumentError, match="no acquisition 'entopy'. Did you mean entropy"):
        find_acquisition("entopy")


def test_the_guide_names_every_acquisition() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/experiments.md").read_text()
    assert [name for name in ACQUISITIONS if f"`{name}`" not in guide] == []
