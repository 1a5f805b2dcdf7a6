"""Compiled code shows what plain code shows; where it cannot, plain code goes on after one line."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from rarefish import describe
from rarefish.features import View, Watcher, watched
from rarefish.ops import compiled
from rarefish.ops.compiled import AdaptivePass
from tests import forked_processes
from tests.cases import CASES, Plain, images

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = forked_processes.run(
        [sys.executable, "-m", "tests.compile_all"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.xdist_group("compiled")  # `found` is made only once
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_features_and_scores_of_all_kinds_of_models(name: str, found: dict[str, dict[str, Any]]) -> None:
    """Where a map is changed in place, or a layer runs twice, a nudge is something else: that is noticed."""
    assert found[name]["features"] < 1e-9 and found[name]["scores"] < 1e-9
    if name in ("in-place relu", "in-place relu tapped too", "shared module", "residual"):
        assert "correlation" in found[name]["said"][0] and found[name]["same"]
    else:
        assert not found[name]["said"], found[name]["said"]


@pytest.mark.xdist_group("compiled")
def test_a_head_of_zeros_is_no_reason_to_doubt(found: dict[str, dict[str, Any]]) -> None:
    assert not found["a head of zeros"]["said"]


def test_what_a_compiler_says_is_passed_on_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here\nand much more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(UserWarning, match="The model runs without torch.compile: no compiler here$") as said:
        describe(Plain(), TensorDataset(images(8)), layers=("conv1",), batch_size=4, compile=True)
    assert len(said) == 1


def test_compiles_where_the_images_to_come_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def try_compile(watcher: Watcher, view: View) -> None:
        tried.append(len(view.images))

    monkeypatch.setattr(compiled, "try_compile", try_compile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))  # a second a batch
    batch, per_image = images(4), 1 / 4
    monkeypatch.setattr(compiled, "WORTH_IT_ON", "cpu")
    with watched(Plain(), ("conv1",)) as watcher:
        for to_come, is_worth_it in ((1.2, True), (0.8, False)):
            run = AdaptivePass(watcher, to_come=int(to_come * compiled.COMPILING / (compiled.SAVED * per_image)) + 56)
            for _ in range(30):
                run(batch)
            assert bool(tried) is is_worth_it and run.is_settled
            tried.clear()
