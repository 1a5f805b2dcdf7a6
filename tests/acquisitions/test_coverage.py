"""Coverage as an acquisition: it is `select()` with what the situation knows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rarefish import Embeddings, Posterior, select
from rarefish.acquisitions import Situation, find_acquisition
from tests.acquisitions.situations import POOL, VALIDATION, seeded, situation


def embedded() -> Situation:
    """The situation with the pixels as embeddings and a linear head."""
    rows, trusted = (
        Embeddings(data.tensors[0].flatten(1).float().numpy(), labels=data.tensors[1].numpy())
        for data in (POOL, VALIDATION)
    )
    torch.manual_seed(0)
    answers = tuple(POOL.tensors[1][[3, 9, 11]].tolist())
    head = nn.Linear(rows.width, 4)
    return replace(situation(), models=(head,), pool=rows, validation=trusted, labels=answers, refused=(0,))


@pytest.mark.parametrize("cross_fit", [True, False])
@pytest.mark.parametrize("name", ["coverage", "coverage_true"])
def test_it_is_select(name: str, cross_fit: bool) -> None:
    here = embedded()
    choice = find_acquisition(name, cross_fit=cross_fit)(here, 5, seeded())
    how: dict[str, Any] = {"labels": "true"} if name == "coverage_true" else {}
    expected = select(
        None if cross_fit else here.model,
        here.pool,
        here.validation,
        budget=5,
        method="coverage",
        cross_fit=cross_fit,
        exclude=[0, *here.labeled],
        labeled=dict(zip(here.labeled, here.labels, strict=True)),
        generator=seeded(),
        progress=False,
        **how,
    )
    assert choice.indices == expected.indices.tolist() and choice.why is not None
    assert choice.why.centers.tolist() == expected.centers.tolist()
    assert not {0, *here.labeled} & set(choice.indices)


def test_labels_of_earlier_rounds_are_used() -> None:
    here = embedded()
    other = replace(here, labels=tuple((label + 1) % 4 for label in here.labels))
    choose = find_acquisition("coverage", cross_fit=True)
    assert choose(here, 8, seeded()).indices != choose(other, 8, seeded()).indices


def test_passes_are_those_of_the_pool_its_sample_and_the_validation_set() -> None:
    here = embedded()
    assert find_acquisition("coverage", cross_fit=True)(here, 5, seeded()).passes == 26 + 26 + 12
    images = replace(situation(), labels=here.labels)
    passes = find_acquisition("coverage")(images, 5, seeded()).passes
    assert passes == 4 * (27 + 27) + 12 + Posterior().passes(12, 3, 27)  # by four networks
