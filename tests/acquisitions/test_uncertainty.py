"""Uncertainty statistics against loops, and their independence of the batch."""

import pytest
import torch
from torch import Tensor

from rarefish.acquisitions.dropout import mc_dropout
from rarefish.acquisitions.uncertainty import STATISTICS, uncertainties
from tests.acquisitions.situations import POOL, choose, seeded, situation, slow_statistic


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("T", [1, 6])
def test_statistics_equal_loops(name: str, T: int) -> None:
    p_TNC = torch.randn(T, 9, 5, generator=seeded(), dtype=torch.float64).mul(2).softmax(dim=2)
    slow = [slow_statistic(name, p_TNC[:, n].tolist()) for n in range(9)]
    torch.testing.assert_close(STATISTICS[name](p_TNC), torch.tensor(slow, dtype=torch.float64))


@pytest.mark.parametrize("name", ["least_confidence", "margin", "entropy"])
def test_without_samples_the_most_uncertain_are_chosen(name: str) -> None:
    here = situation(members=2)
    values = {}
    for i in here.unlabeled:
        answers = [model(POOL.tensors[0][i : i + 1]).softmax(dim=1)[0].tolist() for model in here.models]
        values[i] = slow_statistic(name, answers)
    choice = choose(name, here, 6)
    assert choice.indices == sorted(values, key=lambda i: -values[i])[:6]
    assert choice.passes == 27 * 2


@pytest.mark.parametrize("name", ["bald", "mean_std"])
def test_samples_of_all_members_count(name: str) -> None:
    here = situation(members=2)
    masks = seeded(int(torch.randint(2**62, (), generator=seeded())))
    answers = []
    with torch.no_grad():
        for model in here.models:
            with mc_dropout(model, 5, masks) as predict:
                answers.append(predict(POOL.tensors[0]).softmax(dim=2))
    values = {i: slow_statistic(name, torch.cat(answers)[:, i].tolist()) for i in here.unlabeled}
    assert choose(name, here, 6).indices == sorted(values, key=lambda i: -values[i])[:6]


def test_uncertainty_does_not_depend_on_the_batch() -> None:
    one, other = (
        uncertainties(situation(members=2, batch_size=size), STATISTICS["bald"], 5, seeded()) for size in (3, 10)
    )
    torch.testing.assert_close(one, other)


def test_samples_are_as_many_as_asked_for() -> None:
    seen: list[tuple[int, ...]] = []

    def note(p: Tensor) -> Tensor:
        seen.append(tuple(p.shape))
        return p.mean(dim=(0, 2))

    uncertainties(situation(members=2, batch_size=10), note, 20, seeded())
    assert all(shape[0] == 40 and shape[2] == 4 for shape in seen) and sum(shape[1] for shape in seen) == 27
    assert max(shape[1] for shape in seen) == 2  # 4 × batch_size / samples images at a time
