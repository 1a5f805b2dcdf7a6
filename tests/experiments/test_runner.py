"""Runs: complete, resumed, killed, packed; bad luck with folders and settings."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rarefish.active_learning.records import Record, read_records
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.cells import load_states, task_of
from rarefish.experiments.datasets import FOLDER_VARIABLE, data_key
from rarefish.experiments.initial_models import prepare_starts, starts_of
from rarefish.experiments.run_folder import Store, open_store
from rarefish.experiments.runner import _run_packed, run_experiment
from rarefish.experiments.settings import Experiment, Method
from rarefish.io import write_whole
from rarefish.training.jobs import Job, fit_each
from tests.experiments.small import TEST, few, forget, write_few

pytestmark = pytest.mark.xdist_group("runner")  # the fixture `whole` is made once
ROOT = Path(__file__).parents[2]
COMMAND = [
    sys.executable,
    "-m",
    "rarefish",
    "experiment",
    f"{Path(__file__).with_name('small.py')}:few",
    "--device",
    "cpu",
]
NUM_KILLS = 20
LIMIT = 120_000
"""Bytes of a file: states of rounds fit, a snapshot does not."""
BEGIN = "import sys; sys.argv[0] = 'rarefish'; from rarefish.cli.main import main; main()"


def everything(folder: Path) -> dict[str, list[Record]]:
    """All records of a run, without the seconds."""
    return {
        path.name: [replace(record, select_s=0.0, train_s=0.0) for record in read_records(path)]
        for path in sorted((folder / "records").glob("*.jsonl"))
    }


def orphans(patience_s: float = 600) -> list[str]:
    """Processes without a parent that still belong to runs of ours, once they had time to notice."""
    deadline = time.monotonic() + patience_s
    while True:
        left = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                orphan = "\nPPid:\t1\n" in status.read_text()
                command = (status.parent / "cmdline").read_text()
            except OSError:
                continue
            if orphan and "spawn_main" in command and sys.executable in command:
                left.append(command)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


@pytest.fixture(scope="module", autouse=True)
def _few_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A few digits in place of MNIST, for this process and those it starts."""
    folder = tmp_path_factory.mktemp("data")
    write_few(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder))
        forget()
        yield
    forget()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("run") / "whole"
    subprocess.run([*COMMAND, "--output", str(folder), "--jobs", "1"], cwd=ROOT, check=True, capture_output=True)
    return folder


def under_torchrun(folder: Path, *more: str) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *COMMAND[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*start, "--output", str(folder), *more], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cells are done") == 1


def test_processes_of_torchrun_share_out_the_cells(whole: Path, tmp_path: Path) -> None:
    under_torchrun(tmp_path / "run")
    assert everything(tmp_path / "run") == everything(whole)


def test_processes_of_torchrun_work_on_one_cell_together(whole: Path, tmp_path: Path) -> None:
    """Gradients are summed in another order, so later rounds may differ in an image or two."""
    under_torchrun(tmp_path / "run", "--together", "--methods", "fisher", "--seeds", "1")
    (name, records), *others = everything(tmp_path / "run").items()
    expected = everything(whole)[name]
    assert not others and [r.round for r in records] == [1, 2, 3]
    assert records[0].indices == expected[0].indices
    for ours, theirs in zip(records, expected, strict=True):
        assert ours.accuracy == pytest.approx(theirs.accuracy, abs=0.03)


def test_every_start_is_wanted_once_though_an_ensemble_shares_its_first(whole: Path) -> None:
    wanted = starts_of(few().cells())
    assert sorted(wanted) == [f"pretrained-s{seed}-i60-m{member}" for seed in (0, 1) for member in (0, 1)]
    assert {path.stem for path in (whole / "starts").glob("*.pt")} == set(wanted)


def test_a_run_has_every_round_of_every_cell(whole: Path) -> None:
    records = everything(whole)
    assert len(records) == 6 and all([r.round for r in rows] == [1, 2, 3] for rows in records.values())
    for rows in records.values():
        assert [r.labels_spent for r in rows] == [10, 20, 30]
        assert len({i for r in rows for i in r.indices}) == 30
        for r in rows:
            assert sum(map(sum, r.confusion)) == TEST and len(r.bought) == 10
            if r.method != "varR E2":  # an ensemble's accuracy is the mean of its members
                assert sum(row[i] for i, row in enumerate(r.confusion)) / TEST == pytest.approx(r.accuracy)
    fisher = [r for rows in records.values() for r in rows if r.method == "fisher"]
    assert all(r.kernel == "fisher" and r.labels == "posterior" and r.layers == "conv2" for r in fisher)
    assert all(r.pseudo_accuracy is not None for r in fisher)
    snapshot = np.load(next((whole / "snapshots").glob("fisher*")))
    assert snapshot["features"].shape == (TEST, 50) and len(snapshot["truth"]) == TEST
    assert len(list((whole / "states").glob("*.pt"))) == 6


def test_running_again_changes_nothing_and_more_seeds_add(whole: Path) -> None:
    before = everything(whole)
    run_experiment(few(), whole, jobs=1)
    assert everything(whole) == before


@pytest.mark.slow
def test_kills_cost_no_finished_round_and_change_no_number(whole: Path, tmp_path: Path) -> None:
    """kill -9 at random moments, again and again; the run that ends at last equals one that was left in peace."""
    chance, folder = random.Random(0), tmp_path / "killed"
    finished = 0
    for kill in range(NUM_KILLS):
        run = subprocess.Popen(
            [*COMMAND, "--output", str(folder)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Some before anything is there, some in the middle of trainings and of writing.
        time.sleep(chance.uniform(3.0, 7.0) if kill % 2 else chance.uniform(0.5, 3.0))
        done = run.poll() is not None  # on a quick machine it may be
        run.kill()
        run.wait()
        now = Store(folder).num_finished() if (folder / "records").exists() else 0
        assert now >= finished
        finished = now
        if done:
            break
    subprocess.run([*COMMAND, "--output", str(folder)], cwd=ROOT, check=True, capture_output=True)
    assert everything(folder) == everything(whole)
    assert orphans() == []


def test_a_torn_last_line_is_written_again(whole: Path, tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1)
    store = run_experiment(experiment, tmp_path / "run", jobs=1)
    (cell,) = experiment.cells()
    path = next((store.folder / "records").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert store.records(cell)[-1].round == 3
    # As a kill in the middle of the last write leaves it: half a line, and the state of the round before still there.
    shorter = replace(experiment, rounds=2)
    store = run_experiment(shorter, tmp_path / "other", jobs=1)
    other = store.folder / "records" / path.name
    other.write_bytes(other.read_bytes() + lines[2][:50])
    assert len(store.records(cell)) == 2
    run_experiment(experiment, store.folder, jobs=1)
    assert everything(store.folder)[path.name] == everything(whole)[path.name]


def without_states(whole: Path, folder: Path, num_rounds: int) -> Store:
    """As somebody might copy a run: settings and the records of some rounds, nothing else."""
    (folder / "records").mkdir(parents=True)
    shutil.copy(whole / "settings.json", folder)
    for path in (whole / "records").iterdir():
        lines = path.read_bytes().splitlines(keepends=True)[:num_rounds]
        (folder / "records" / path.name).write_bytes(b"".join(lines))
    return Store(folder)


def test_records_alone_are_enough_to_go_on(whole: Path, tmp_path: Path) -> None:
    """The last finished round is trained again, and the next one chooses what it would have chosen."""
    store = without_states(whole, tmp_path / "run", 2)
    run_experiment(few(), store.folder, jobs=2)
    assert everything(store.folder) == everything(whole)


def test_trainings_done_again_are_handed_over_together(whole: Path, tmp_path: Path) -> None:
    store, experiment = without_states(whole, tmp_path / "run", 2), few().only(seeds=1)
    open_store(store.folder, few())
    cells, calls = list(experiment.cells()), []

    def note(jobs: Sequence[Job]) -> None:
        calls.append(len(jobs))
        fit_each(jobs)

    prepare_starts(experiment, starts_of(cells), store, "cpu")
    tasks = [task_of(experiment, cell, store, "cpu") for cell in cells]
    states = load_states(tasks, cells, store, note)
    assert calls == [4] and [state.number for state in states] == [2, 2, 2]  # one of the methods has two networks
    for cell, state in zip(cells, states, strict=True):
        assert state.labeled == tuple(i for record in store.records(cell) for i in record.indices)


def test_a_warm_run_says_that_it_needs_its_state(whole: Path, tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1, rounds=1, restarts=("warm",))
    made = run_experiment(experiment, tmp_path / "made", together=True)
    store = without_states(made.folder, tmp_path / "run", 1)
    with pytest.raises(DataError, match="1 rounds of random.* but not their state, states/random.*copy that file"):
        run_experiment(replace(experiment, rounds=2), store.folder, together=True)


def test_all_cells_in_step_do_what_each_would_alone(whole: Path, tmp_path: Path) -> None:
    """The packed runner, here on the CPU: rounding apart, what the processes found."""
    experiment = few().only(("random", "fisher"), seeds=1, rounds=2)
    store = open_store(tmp_path / "packed", experiment)
    cells, told = list(experiment.cells()), []
    _run_packed(experiment, cells[:1], store, "cpu", lambda what, done, total: told.append(done), 0, 4)
    _run_packed(experiment, cells, store, "cpu", lambda what, done, total: told.append(done), 2, 4)
    alone = everything(whole)
    for name, rows in everything(store.folder).items():
        assert [r.labels_spent for r in rows] == [10, 20] and all(len(set(r.indices)) == 10 for r in rows)
        if rows[0].method == "random":  # the other choices hang on features, and so on the rounding of the pretraining
            assert [r.indices for r in rows] == [r.indices for r in alone[name][:2]]
            assert rows[1].accuracy == pytest.approx(alone[name][1].accuracy, abs=0.05)
    assert told[-1] == 4


def test_other_settings_in_the_same_folder_are_refused(whole: Path) -> None:
    with pytest.raises(ArgumentError, match="other settings: budget: 10 then, 12 now. Choose another folder"):
        run_experiment(replace(few(), budget=12), whole)


def test_another_method_of_the_same_name_is_refused_and_new_names_are_kept(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    other = Method(name="varR E2", acquisition="variation_ratio", settings={"samples": 4}, members=2)
    new = Method(name="margin", acquisition="margin")
    run_experiment(replace(few(), methods=(new,), seeds=1, rounds=1), tmp_path / "run", jobs=1)
    with pytest.raises(ArgumentError, match=r"method 'varR E2': .*'samples': 3.* then, .*'samples': 4.* now"):
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
    with pytest.raises(ArgumentError, match="the images of mnist were another copy. Choose another folder"):
        run_experiment(few(), tmp_path / "run")
    path.write_text(json.dumps(few().to_json()))  # from before data were compared
    assert run_experiment(few(), tmp_path / "run").num_finished() == 18
    assert json.loads(path.read_text())["data"] == data_key(few())


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ArgumentError, match="is not empty and holds no run"):
        run_experiment(few(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_full_disk_is_one_line_and_costs_no_finished_round(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    limited = [
        sys.executable,
        "-c",
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n{BEGIN}",
    ]
    failed = subprocess.run(
        [*limited, *COMMAND[3:], "--output", str(folder), "--jobs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    complaint = failed.stderr.splitlines()[-1]
    assert failed.returncode == 1 and complaint.startswith("rarefish: ") and str(folder) in complaint
    assert "Traceback" not in failed.stderr and not list(folder.rglob("*.part"))
    subprocess.run([*COMMAND, "--output", str(folder), "--jobs", "1"], cwd=ROOT, check=True, capture_output=True)
    assert everything(folder) == everything(whole)


def test_a_folder_that_may_not_be_written_is_left_as_it_was() -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "records.csv").write_text("precious")
        Path(place).chmod(0o555)
        with unprivileged():
            with pytest.raises(PermissionError, match=f"{place}/run"):
                open_store(Path(place) / "run", few())
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
    store = Store(whole)
    with store.held(), pytest.raises(ArgumentError, match="Another process is running the experiment"):
        run_experiment(few(), whole)


def test_a_run_under_way_is_left_alone_by_another_with_other_settings(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    with store.held():
        open_store(store.folder, few())
        store.save_start("precious", {})
        with pytest.raises(ArgumentError, match="Another process"):
            run_experiment(few().only(budget=7), store.folder)
    assert store.start_path("precious").exists()
    assert json.loads((store.folder / "settings.json").read_text()) == few().to_json()


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1, rounds=1)
    store = run_experiment(experiment, tmp_path / "run", jobs=1)
    (cell,) = experiment.cells()
    state = next((store.folder / "states").glob("*.pt"))
    for damaged in (state.read_bytes()[:100], b"not a state at all"):
        state.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read"):
            store.state(cell, 1)


def test_settings_are_kept_as_plain_text(whole: Path) -> None:
    kept = json.loads((whole / "settings.json").read_text())
    assert kept == few().to_json() | {"data": data_key(few())} and isinstance(few(), Experiment)


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


def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    command = [*COMMAND, "--output", str(tmp_path / "run"), "--jobs", "2"]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    workers: set[int] = set()
    deadline = time.monotonic() + 600
    while not list((tmp_path / "run").glob("starts/*.pt")):
        assert time.monotonic() < deadline and run.poll() is None
        tasks = Path(f"/proc/{run.pid}/task").iterdir()
        workers = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
        time.sleep(0.1)
    assert workers
    run.kill()
    run.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
