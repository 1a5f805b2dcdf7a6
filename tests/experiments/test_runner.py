"""Runs: complete, resumed, killed, packed; bad luck with folders and settings."""

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from rarefish.experiments import cells
from rarefish.experiments.run_folder import RunFolder, open_run_folder
from rarefish.experiments.runner import _run_packed, run_experiment
from tests import forked_processes
from tests.experiments.runs import COMMAND, ROOT, everything
from tests.experiments.small import QUICK, TEST, few
from tests.forked_processes import FORKED_RANKS

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]  # `whole` is made only once
NUM_KILLS = 20
WITH_WORKERS = 2
"""The kill of a run with worker processes, which first need seconds to import torch."""
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


def children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


def none_is_left(pids: set[int], patience_s: float = 600) -> bool:
    """Whether all of the processes end, once they had time to notice."""
    deadline = time.monotonic() + patience_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def num_finished(folder: Path) -> int:
    return RunFolder(folder).num_finished() if (folder / "records").exists() else 0


def under_torchrun(folder: Path, *more: str) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start += [*FORKED_RANKS, str(ROOT / "src/rarefish/__main__.py"), *COMMAND[3:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = forked_processes.run(
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
    found, alone = everything(tmp_path / "run"), everything(whole)
    baselines = {name: rows for name, rows in found.items() if not rows[0].round}
    assert len(baselines) == 2
    for name, (ours,) in baselines.items():
        assert ours.accuracy == pytest.approx(alone[name][0].accuracy, abs=0.03)
    ((name, records),) = ((name, rows) for name, rows in found.items() if rows[0].round)
    expected = alone[name]
    assert [r.round for r in records] == [1, 2, 3]
    assert records[0].indices == expected[0].indices
    for ours, theirs in zip(records, expected, strict=True):
        assert ours.accuracy == pytest.approx(theirs.accuracy, abs=0.03)


def test_a_run_has_every_round_of_every_cell(whole: Path) -> None:
    records = {name: rows for name, rows in everything(whole).items() if rows[0].round}
    assert len(records) == 6 and all([r.round for r in rows] == [1, 2, 3] for rows in records.values())
    for rows in records.values():
        assert [r.labels_spent for r in rows] == [10, 20, 30]
        assert len({i for r in rows for i in r.indices}) == 30
        for r in rows:
            assert sum(map(sum, r.confusion)) == TEST and len(r.new_labels) == 10
            assert r.validation_recall and len(r.validation_recall) == 10  # the validation set is not learned
            if r.method != "varR E2":  # an ensemble's accuracy is the mean of its members
                assert sum(row[i] for i, row in enumerate(r.confusion)) / TEST == pytest.approx(r.accuracy)
    fisher = [r for rows in records.values() for r in rows if r.method == "fisher"]
    assert all(r.kernel == "fisher" and r.labels == str(QUICK) and r.layers == "conv2" for r in fisher)
    assert all(r.pseudo_accuracy is not None for r in fisher)
    for rows in records.values():  # the digits 5 to 9 are rare
        assert [r.rare_labeled for r in rows] == [sum(label >= 5 for label in r.new_labels) for r in rows]
        assert [r.rare_labeled_so_far for r in rows] == list(accumulate(r.rare_labeled or 0 for r in rows))
    snapshot = np.load(next((whole / "snapshots").glob("fisher*")))
    assert snapshot["features"].shape == (TEST, 50) and len(snapshot["truth"]) == TEST
    assert len(list((whole / "states").glob("*.pt"))) == 6


def test_running_again_changes_nothing_and_more_seeds_add(whole: Path) -> None:
    before = everything(whole)
    run_experiment(few(), whole, jobs=1)
    assert everything(whole) == before


def test_a_run_resumed_by_other_code_names_both_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = few().only(("random",), seeds=1, rounds=2)
    for number, commit in enumerate(("0000001", "0000002+"), 1):
        monkeypatch.setattr(cells, "source_commit", lambda commit=commit: commit)
        run_experiment(replace(experiment, rounds=number), tmp_path / "run", jobs=1)
    run_folder, (cell,) = open_run_folder(tmp_path / "run", experiment), experiment.cells()
    assert [record.commit for record in run_folder.records(cell)] == ["0000001", "0000002+"]


@pytest.mark.slow
def test_kills_cost_no_finished_round_and_change_no_number(whole: Path, tmp_path: Path) -> None:
    """kill -9 at random moments, again and again; the run that ends at last equals one that was left in peace.

    Worker processes end with a killed run.
    """
    rng, folder = random.Random(0), tmp_path / "killed"
    finished = 0
    for kill in range(NUM_KILLS):
        jobs = 2 if kill == WITH_WORKERS else 1
        run = forked_processes.Popen(
            [*COMMAND, "--output", str(folder), "--jobs", str(jobs)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Some before anything is there, some in the middle of training and of writing; however slow the machine is,
        # some after one more round, which the next run goes on from.
        while (kill % 2 or jobs > 1) and run.poll() is None and num_finished(folder) == finished:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.05, 0.3))
        done = run.poll() is not None  # on a quick machine it may be
        workers = set() if done else children(run.pid)
        run.kill()
        run.wait()
        if jobs > 1:
            assert workers and none_is_left(workers)
        now = num_finished(folder)
        assert now >= finished
        finished = now
        if done:
            break
    forked_processes.run([*COMMAND, "--output", str(folder), "--jobs", "2"], cwd=ROOT, check=True, capture_output=True)
    assert everything(folder) == everything(whole)
    assert orphans() == []


def test_all_cells_in_step_do_what_each_would_alone(whole: Path, tmp_path: Path) -> None:
    """The packed runner, here on the CPU: rounding apart, what the processes found."""
    experiment = few().only(("random", "fisher"), seeds=1, rounds=2)
    run_folder = open_run_folder(tmp_path / "packed", experiment)
    own_cells, told = [*experiment.cells(), *experiment.baseline_cells()], []
    _run_packed(experiment, own_cells[:1], run_folder, "cpu", lambda what, done, total: told.append(done), 0, 6)
    _run_packed(experiment, own_cells, run_folder, "cpu", lambda what, done, total: told.append(done), 2, 6)
    alone = everything(whole)
    for name, rows in everything(run_folder.folder).items():
        if not rows[0].round:
            assert len(rows) == 1 and rows[0].accuracy == pytest.approx(alone[name][0].accuracy, abs=0.05)
            continue
        assert [r.labels_spent for r in rows] == [10, 20] and all(len(set(r.indices)) == 10 for r in rows)
        if rows[0].method == "random":  # the other choices hang on features, and so on the rounding of the pretraining
            assert [r.indices for r in rows] == [r.indices for r in alone[name][:2]]
            assert rows[1].accuracy == pytest.approx(alone[name][1].accuracy, abs=0.05)
    assert told[-1] == 6


def test_a_full_disk_is_one_line_and_costs_no_finished_round(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    only = ["--seeds", "1"]
    limited = [
        sys.executable,
        "-c",
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n{BEGIN}",
    ]
    failed = forked_processes.run(
        [*limited, *COMMAND[3:], "--output", str(folder), "--jobs", "1", *only],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    complaint = failed.stderr.splitlines()[-1]
    assert failed.returncode == 1 and complaint.startswith("rarefish: ") and str(folder) in complaint
    assert "Traceback" not in failed.stderr and not list(folder.rglob("*.part"))
    assert num_finished(folder) >= 1
    again = [*COMMAND, "--output", str(folder), "--jobs", "1", *only]
    forked_processes.run(again, cwd=ROOT, check=True, capture_output=True)
    made, expected = everything(folder), everything(whole)
    assert len(made) == 5 and made == {name: expected[name] for name in made}
