"""Runs: complete, resumed, killed, packed; bad luck with folders and settings."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rarefish.experiments.run_folder import RunFolder, open_run_folder
from rarefish.experiments.runner import _run_packed, run_experiment
from tests.experiments.runs import COMMAND, ROOT, everything
from tests.experiments.small import TEST, few

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]  # `whole` is made only once
NUM_KILLS = 20
LIMIT = 120_000
"""Bytes of a file: states of rounds fit, a snapshot does not."""
BEGIN = "import sys; sys.argv[0] = 'rarefish'; from rarefish.cli.main import main; main()"


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
        now = RunFolder(folder).num_finished() if (folder / "records").exists() else 0
        assert now >= finished
        finished = now
        if done:
            break
    subprocess.run([*COMMAND, "--output", str(folder)], cwd=ROOT, check=True, capture_output=True)
    assert everything(folder) == everything(whole)
    assert orphans() == []


def test_all_cells_in_step_do_what_each_would_alone(whole: Path, tmp_path: Path) -> None:
    """The packed runner, here on the CPU: rounding apart, what the processes found."""
    experiment = few().only(("random", "fisher"), seeds=1, rounds=2)
    run_folder = open_run_folder(tmp_path / "packed", experiment)
    cells, told = list(experiment.cells()), []
    _run_packed(experiment, cells[:1], run_folder, "cpu", lambda what, done, total: told.append(done), 0, 4)
    _run_packed(experiment, cells, run_folder, "cpu", lambda what, done, total: told.append(done), 2, 4)
    alone = everything(whole)
    for name, rows in everything(run_folder.folder).items():
        assert [r.labels_spent for r in rows] == [10, 20] and all(len(set(r.indices)) == 10 for r in rows)
        if rows[0].method == "random":  # the other choices hang on features, and so on the rounding of the pretraining
            assert [r.indices for r in rows] == [r.indices for r in alone[name][:2]]
            assert rows[1].accuracy == pytest.approx(alone[name][1].accuracy, abs=0.05)
    assert told[-1] == 4


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
