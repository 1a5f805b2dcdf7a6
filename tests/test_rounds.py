"""The loop: what each round may see, and from where it trains."""

from typing import Any

import pytest
import torch

from rarefish.acquisitions import ACQUISITIONS, Choice, Situation
from rarefish.errors import ArgumentError
from rarefish.oracles import known_labels
from rarefish.rounds import Round, run_rounds
from rarefish.training import Training
from tests.cases import NUM_CLASSES, Plain, labeled

POOL, VALIDATION, TEST = labeled(40, 1), labeled(12, 2), labeled(10, 3)


def rounds(acquire: Any = ACQUISITIONS["random"], start: Plain | None = None, **changes: Any) -> list[Round]:
    settings = {
        "num_rounds": 3,
        "budget": 5,
        "num_classes": NUM_CLASSES,
        "generator": torch.Generator().manual_seed(0),
        "training": Training(epochs=2),
    }
    torch.manual_seed(0)
    oracle = known_labels(POOL.tensors[1].tolist())
    return list(run_rounds(start or Plain(), POOL, VALIDATION, TEST, acquire, oracle, **settings | changes))


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_labels_add_up_and_no_image_is_bought_twice(name: str) -> None:
    run = rounds(ACQUISITIONS[name])
    bought = [i for each in run for i in each.choice.indices]
    assert [each.labels_spent for each in run] == [5, 10, 15] and len(set(bought)) == 15
    assert [label for each in run for label in each.labels] == POOL.tensors[1][bought].tolist()
    again = rounds(ACQUISITIONS[name])
    assert [each.score.accuracy for each in again] == [each.score.accuracy for each in run]


@pytest.mark.parametrize("warm", [False, True])
def test_cold_trains_from_the_start_and_warm_goes_on(warm: bool) -> None:
    torch.manual_seed(0)
    start = Plain()
    before = start.fc.weight.clone()
    seen: list[torch.Tensor] = []

    def first_five(situation: Situation, budget: int, _: torch.Generator) -> Choice:
        assert isinstance(situation.model, Plain)
        seen.append(situation.model.fc.weight.clone())
        return Choice(situation.unlabeled[:budget])

    run = rounds(first_five, start, warm=warm, training=Training(epochs=0), num_rounds=2)
    assert torch.equal(start.fc.weight, before)
    assert torch.equal(seen[1], before)  # no epoch, no change, either way
    run = rounds(first_five, start, warm=warm)
    model = run[0].model
    assert isinstance(model, Plain) and not torch.equal(model.fc.weight, before)
    lazy = rounds(first_five, start, warm=warm, training=Training(epochs=1, lr=1e-12), num_rounds=2)
    assert torch.equal(start.fc.weight, before) and len(lazy) == 2


def test_warm_and_cold_differ_from_the_second_round_on() -> None:
    cold, warm = (rounds(warm=w) for w in (False, True))
    weights = [[each.model.state_dict()["fc.weight"] for each in run] for run in (cold, warm)]
    assert torch.equal(weights[0][0], weights[1][0]) and not torch.equal(weights[0][1], weights[1][1])


def test_more_labels_than_images_are_refused_before_the_work() -> None:
    with pytest.raises(ArgumentError, match="9 rounds of 5 labels need 45 images; the pool has 40"):
        rounds(num_rounds=9)
