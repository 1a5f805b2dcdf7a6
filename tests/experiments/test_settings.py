"""Experiments as data: what they refuse, how they fall into cells, what may differ on resume."""

from dataclasses import replace
from typing import Any

import pytest

from rarefish.errors import ArgumentError
from rarefish.experiments.settings import Circumstances, Method, differences
from tests.experiments.small import BASELINES, small


def test_cells_are_all_combinations() -> None:
    wide = replace(small(), imbalances=(50, 60), validation_sizes=(100, 200), restarts=("cold", "warm"))
    cells = list(wide.cells())
    assert len(cells) == 3 * 2 * 2 * 2 * 2 and len({cell.key for cell in cells}) == len(cells)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_a_cell_is_named_by_what_decides_its_numbers() -> None:
    first = next(small().cells())
    assert first.key == next(replace(small(), seeds=7, rounds=9).cells()).key
    assert first.key != replace(first, imbalance=51).key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"starts": ("pretraned",)}, "no 'pretraned'. Did you mean pretrained"),
        ({"validation_sizes": (500,)}, "500 validation images do not fit into a holdout of 200"),
        ({"methods": (Method(name="a", acquisition="random"),) * 2}, "Two methods have the same name"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(small(), **changes)


def test_the_estimator_that_a_record_names() -> None:
    assert [method.estimator for method in (*small().methods, *BASELINES)] == ["", "posterior", "", "", "posterior"]


def test_some_methods_by_name() -> None:
    assert [m.name for m in small().only(("fisher",), seeds=1).methods] == ["fisher"]
    with pytest.raises(ArgumentError, match="no method 'fischer'. Did you mean fisher"):
        small().only(("fischer",))


def test_differences_name_both_values_but_not_what_may_differ() -> None:
    old = small()
    new = replace(old, budget=11, seeds=5, rounds=9, training={"epochs": 4})
    assert differences(old.to_json(), new.to_json()) == [
        "budget: was 10, is 11",
        "training: was {'epochs': 2}, is {'epochs': 4}",
    ]


def test_a_run_from_before_a_setting_came_has_its_default() -> None:
    old = small().to_json()
    del old["circumstances"], old["best_epoch"]
    assert differences(old, small().to_json()) == []
    harder = replace(small(), circumstances=Circumstances(junk=3))
    assert "junk" in differences(old, harder.to_json())[0]
