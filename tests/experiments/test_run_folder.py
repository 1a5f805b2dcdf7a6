"""The folder of a run: settings that are compared, records, states and the lock."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.datasets import data_key
from rarefish.experiments.run_folder import RunFolder, open_run_folder
from rarefish.experiments.runner import run_experiment
from rarefish.experiments.settings import Experiment, Method
from rarefish.io import write_whole
from tests.experiments.runs import everything
from tests.experiments.small import few

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]  # `whole` is made only once


def test_a_torn_last_line_is_written_again(whole: Path, tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1)
    run_folder = run_experiment(experiment, tmp_path / "run", jobs=1)
    (cell,) = experiment.cells()
    path = next((run_folder.folder / "records").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert run_folder.records(cell)[-1].round == 3
    # As a kill in the middle of the last write leaves it: half a line, and the state of the round before still there.
    shorter = replace(experiment, rounds=2)
    run_folder = run_experiment(shorter, tmp_path / "other", jobs=1)
    other = run_folder.folder / "records" / path.name
    other.write_bytes(other.read_bytes() + lines[2][:50])
    assert len(run_folder.records(cell)) == 2
    run_experiment(experiment, run_folder.folder, jobs=1)
    assert everything(run_folder.folder)[path.name] == everything(whole)[path.name]


def test_other_settings_in_the_same_folder_are_refused(whole: Path) -> None:
    with pytest.raises(ArgumentError, match="other settings: budget: was 10, is 12. Choose another folder"):
        run_experiment(replace(few(), budget=12), whole)


def test_another_method_of_the_same_name_is_refused_and_new_names_are_kept(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    other = Method(name="varR E2", acquisition="variation_ratio", settings={"samples": 4}, members=2)
    new = Method(name="margin", acquisition="margin")
    run_experiment(replace(few(), methods=(new,), seeds=1, rounds=1), tmp_path / "run", jobs=1)
    with pytest.raises(ArgumentError, match=r"method 'varR E2': was .*'samples': 3.*, is .*'samples': 4"):
        run_experiment(replace(few(), methods=(other,)), tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "settings.json").read_text())["methods"]
    assert [method["name"] for method in kept] == ["margin", "random", "fisher", "varR E2"]


def test_settings_of_a_run_that_are_damaged_get_a_sentence(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    for content in ("{", "[]", '{"methods": 3}', '{"circumstances": []}'):
        (tmp_path / "run" / "settings.json").write_text(content)
        with pytest.raises(DataError, match=r"settings\.json"):
            run_experiment(few(), tmp_path / "run")


def test_other_images_under_the_same_name_are_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "settings.json"
    path.write_text(path.read_text().replace(data_key(few()), "of another copy"))
    with pytest.raises(ArgumentError, match="the images of mnist were different. Choose another folder"):
        run_experiment(few(), tmp_path / "run")
    path.write_text(json.dumps(few().to_json()))  # from before data were compared
    assert run_experiment(few(), tmp_path / "run").num_finished() == 22
    assert json.loads(path.read_text())["data"] == data_key(few())


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ArgumentError, match="is not empty and does not contain a run"):
        run_experiment(few(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_may_not_be_written_is_left_as_it_was() -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "records.csv").write_text("precious")
        Path(place).chmod(0o555)
        with unprivileged():
            with pytest.raises(PermissionError, match=f"{place}/run"):
                open_run_folder(Path(place) / "run", few())
            with pytest.raises(PermissionError, match="records.csv"):
                write_whole(Path(place) / "records.csv", "other")
        assert [path.name for path in Path(place).iterdir()] == ["records.csv"]
        assert (Path(place) / "records.csv").read_text() == "precious"


@contextmanager
def unprivileged() -> Iterator[None]:
    """As nobody in particular: root may write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_two_at_once_are_refused(whole: Path) -> None:
    run_folder = RunFolder(whole)
    with run_folder.locked(), pytest.raises(ArgumentError, match="Another process is running the experiment"):
        run_experiment(few(), whole)


def test_a_run_under_way_is_left_alone_by_another_with_other_settings(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path / "run")
    with run_folder.locked():
        open_run_folder(run_folder.folder, few())
        run_folder.save_start("precious", {})
        with pytest.raises(ArgumentError, match="Another process"):
            run_experiment(few().only(budget=7), run_folder.folder)
    assert run_folder.start_path("precious").exists()
    assert json.loads((run_folder.folder / "settings.json").read_text()) == few().to_json()


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1, rounds=1)
    run_folder = run_experiment(experiment, tmp_path / "run", jobs=1)
    (cell,) = experiment.cells()
    state = next((run_folder.folder / "states").glob("*.pt"))
    for damaged in (state.read_bytes()[:100], b"not a state at all"):
        state.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read"):
            run_folder.state(cell, 1)


def test_settings_are_kept_as_plain_text(whole: Path) -> None:
    kept = json.loads((whole / "settings.json").read_text())
    assert kept == few().to_json() | {"data": data_key(few())} and isinstance(few(), Experiment)
