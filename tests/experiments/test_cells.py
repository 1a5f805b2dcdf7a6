"""The cells of an experiment as tasks: settings that are checked first, and states of finished rounds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.cells import load_states, task_of
from rarefish.experiments.initial_models import prepare_starts, starts_of
from rarefish.experiments.run_folder import open_run_folder
from rarefish.experiments.runner import run_experiment
from rarefish.experiments.settings import Method
from rarefish.training.jobs import Job, fit_each
from tests.experiments.runs import everything, without_states
from tests.experiments.small import few

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]  # `whole` is made only once


def test_records_alone_are_enough_to_go_on(whole: Path, tmp_path: Path) -> None:
    """The last finished round is trained again, and the next one chooses what it would have chosen."""
    run_folder = without_states(whole, tmp_path / "run", 2)
    run_experiment(few(), run_folder.folder, jobs=2)
    assert everything(run_folder.folder) == everything(whole)


def test_trainings_done_again_are_handed_over_together(whole: Path, tmp_path: Path) -> None:
    run_folder, experiment = without_states(whole, tmp_path / "run", 2), few().only(seeds=1)
    open_run_folder(run_folder.folder, few())
    cells, calls = list(experiment.cells()), []

    def note(jobs: Sequence[Job]) -> None:
        calls.append(len(jobs))
        fit_each(jobs)

    prepare_starts(experiment, starts_of(cells), run_folder, "cpu")
    tasks = [task_of(experiment, cell, run_folder, "cpu") for cell in cells]
    states = load_states(tasks, cells, run_folder, note)
    assert calls == [4] and [state.number for state in states] == [2, 2, 2]  # one of the methods has two networks
    for cell, state in zip(cells, states, strict=True):
        assert state.labeled == tuple(i for record in run_folder.records(cell) for i in record.indices)


def test_a_warm_run_says_that_it_needs_its_state(whole: Path, tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1, rounds=1, restarts=("warm",))
    made = run_experiment(experiment, tmp_path / "made", together=True)
    run_folder = without_states(made.folder, tmp_path / "run", 1)
    with pytest.raises(DataError, match="1 rounds of random.* but not their state, states/random.*copy that file"):
        run_experiment(replace(experiment, rounds=2), run_folder.folder, together=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "mnst"}, "no data set 'mnst'. Did you mean mnist"),
        ({"model": "lennet"}, "no model 'lennet'. Did you mean lenet"),
        ({"rare": (5, 42)}, "No class 42 can be rare: mnist has classes 0 to 9"),
        ({"training": {"epoch": 1}}, "settings of training do not fit: .*'epoch'"),
        ({"methods": (Method(name="a", acquisition="fischer"),)}, "no acquisition 'fischer'. Did you mean fisher"),
        (
            {"methods": (Method(name="a", acquisition="fisher", settings={"layer": []}),)},
            "method 'a' do not fit: .*'layer'",
        ),
        ({"methods": (Method(name="a", acquisition="fisher", settings={"layers": ["conv9"]}),)}, "no layer 'conv9'"),
        ({"holdout": 2500, "validation_sizes": (2500,)}, "holdout=2500: .* there are 62. Give fewer. Set holdout="),
    ],
)
def test_mistakes_in_a_recipe_are_found_before_any_work(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        run_experiment(replace(few(), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
