"""`rarefish select` in a workspace and from files to files: one process, several, and bad input."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from rarefish.cli.main import cli
from rarefish.data.open_dataset import open_pool
from rarefish.distributed.resume_folder import NAME
from rarefish.errors import ArgumentError, DataError, ModelError
from rarefish.models.efficientnet_lite import weights_file
from rarefish.models.loading import load_model
from tests import forked_processes
from tests.forked_processes import FORKED_RANKS
from tests.workspaces import make_images

ROOT = Path(__file__).parents[2]
NET = """
from torch import nn

def make(num_classes):
    below = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*below, nn.Linear(24, num_classes))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pool with one broken file, a validation set of two classes, a model and its weights."""
    rng = np.random.default_rng(0)
    for name, count in (("pool/a", 20), ("pool/b", 19), ("trusted/cat", 8), ("trusted/dog", 8)):
        (tmp_path / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (12, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number:02d}.png")
    (tmp_path / "pool/b/07.png").write_bytes(b"no image")
    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(1)
    torch.save(load_model(f"{tmp_path / 'net.py'}:make", 2, 1).state_dict(), tmp_path / "net.pt")
    return tmp_path


def run(folder: Path, *more: str, ranks: int = 1) -> "subprocess.CompletedProcess[str]":
    start = ["-m", "rarefish"]
    if ranks > 1:
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *FORKED_RANKS]
        start += [str(ROOT / "src/rarefish/__main__.py")]
    command = [sys.executable, *start, "select", "--model", "net.py:make", "--weights", "net.pt"]
    command += ["--pool", "pool", "--validation", "trusted", "--budget", "6", "--size", "12x12", "--mode", "L"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command += ["--workers", "0", *more]
    return forked_processes.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )


def run_apart(folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Two processes, each in a folder of its own as on a machine of its own: machine-0, machine-1."""
    (folder / "start.py").write_text(
        "import os\nfrom rarefish.cli.main import main\n"
        "os.chdir(f'machine-{os.environ[\"RANK\"]}')\nif __name__ == '__main__':\n    main()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [*FORKED_RANKS, str(folder / "start.py")]
    command += ["select", "--model", "net.py:make", "--weights", "net.pt", "--pool", "pool", "--validation", "trusted"]
    command += ["--budget", "6", "--size", "12x12", "--mode", "L", "--workers", "0", "--shard", "5", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return forked_processes.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture
def machines(folder: Path) -> Path:
    """The same files twice, with their times."""
    names = ("pool", "trusted", "net.py", "net.pt")
    for number in range(2):
        (folder / f"machine-{number}").mkdir()
        for name in names:
            copy = shutil.copytree if (folder / name).is_dir() else shutil.copy2
            copy(folder / name, folder / f"machine-{number}" / name)
    return folder


def own_sentences(done: "subprocess.CompletedProcess[str]") -> set[str]:
    """What rarefish said, without torchrun's own report on processes that failed."""
    assert done.returncode == 1 and 'rarefish/cli.py", line' not in done.stderr, done.stderr
    return {line for line in done.stderr.splitlines() if line.startswith("rarefish:")}


def test_every_machine_clears_its_own_shards_once_the_picks_are_written(machines: Path) -> None:
    done = run_apart(machines)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (machines / "machine-0/picks").iterdir()) == [
        *("picks.csv", "picks.png", "unreadable.txt")
    ]
    assert not list((machines / "machine-1").glob("picks/*"))


def test_processes_with_other_inputs_stop_with_a_sentence(machines: Path) -> None:
    os.utime(machines / "machine-1/pool/a/03.png", ns=(1, 1))
    Image.new("L", (12, 12)).save(machines / "machine-1/trusted/dog/02.png")
    weights = torch.load(machines / "machine-1/net.pt")
    weights["4.bias"] += 1
    torch.save(weights, machines / "machine-1/net.pt")
    assert own_sentences(run_apart(machines)) == {
        "rarefish: Process 1 differs from process 0 in: pool files, validation files, model weights. Give all "
        "processes the same inputs; copy files with their times (rsync -a)."
    }
    assert not list(machines.glob("machine-*/picks/picks.csv"))


def test_what_one_process_cannot_do_stops_all(machines: Path) -> None:
    (machines / "machine-1/pool").rename(machines / "machine-1/images")
    assert own_sentences(run_apart(machines)) == {"rarefish: Process 1: pool does not exist."}


def picks(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_one_process_and_three_choose_the_same_files(folder: Path) -> None:
    one = run(folder, "--output", "one")
    assert one.returncode == 0, one.stderr
    assert "6 images chosen" in one.stdout and "1 pool images could not be read and were left out" in one.stdout
    assert "100% of the pool" in one.stderr
    rows = picks(folder / "one/picks.csv")
    assert len({row["path"] for row in rows}) == 6 and all((folder / row["path"]).exists() for row in rows)
    assert {row["pseudo_label"] for row in rows} <= {"cat", "dog"} and "trusted/" in rows[0]["center_path"]
    assert (folder / "one/picks.png").exists() and "b/07.png: " in (folder / "one/unreadable.txt").read_text()
    assert not (folder / "one/shards").exists()
    assert sorted(path.name for path in (folder / "one").iterdir()) == ["picks.csv", "picks.png", "unreadable.txt"]
    three = run(folder, "--output", "three", "--shard", "5", ranks=3)
    assert three.returncode == 0, three.stderr
    assert [row["path"] for row in picks(folder / "three/picks.csv")] == [row["path"] for row in rows]
    assert three.stdout.count("images chosen") == 1


def test_a_folder_of_the_user_beside_the_output_is_never_touched(folder: Path) -> None:
    (folder / "pool").rename(folder / "shards")
    (folder / "shards/plan.pt").write_text("mine")
    before = sorted((path, path.read_bytes()) for path in (folder / "shards").rglob("*.*"))
    done = run(folder, "--pool", "shards", "--output", ".")
    assert done.returncode == 0, done.stderr
    assert sorted((path, path.read_bytes()) for path in (folder / "shards").rglob("*.*")) == before
    (folder / NAME).mkdir()
    (folder / NAME / "cat.pt").write_text("mine")
    refused = run(folder, "--pool", "shards", "--output", ".")
    assert refused.returncode == 1 and f"{NAME} was not created by rarefish" in refused.stderr
    assert "Traceback" not in refused.stderr and (folder / NAME / "cat.pt").read_text() == "mine"


def test_bad_input_gets_a_sentence(folder: Path) -> None:
    strict = run(folder, "--strict")
    assert strict.returncode == 1 and "07.png cannot be decoded" in strict.stderr and "Traceback" not in strict.stderr
    size = run(folder, "--size", "12by12")
    assert size.returncode == 1 and "HEIGHTxWIDTH" in size.stderr
    with pytest.raises(DataError, match="does not exist"):
        open_pool(folder / "nowhere", (12, 12))
    with pytest.raises(ArgumentError, match="has no function 'mak'. Did you mean make"):
        load_model(f"{folder / 'net.py'}:mak", 2, 1)
    with pytest.raises(ArgumentError, match="Cannot find 'net_of_nobody'"):
        load_model("net_of_nobody:make", 2, 1)
    with pytest.raises(ModelError, match=r"belongs to a different network. of another shape: 4.bias, 4.weight"):
        load_model(f"{folder / 'net.py'}:make", 3, 1, folder / "net.pt")
    torch.save(torch.nn.Linear(1, 1), folder / "whole.pt")
    with pytest.raises(ModelError, match="contains more than weights"):
        load_model(f"{folder / 'net.py'}:make", 2, 1, folder / "whole.pt")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    make_images(tmp_path, pool=30, trusted=6)
    parts = ("--pool", tmp_path / "pool", "--validation", tmp_path / "validation", "--model", "lenet")
    done = invoke("init", tmp_path / "work", *parts, "--size", "28x28", "--jobs", 1)
    assert done.exit_code == 0, done.output
    return tmp_path / "work"


def test_select_in_a_workspace_takes_nothing_twice(work: Path) -> None:
    done = invoke("select", work, "--budget", 3, "--workers", 0)
    assert done.exit_code == 0 and "Round 1: 3 images" in done.output, done.output
    for arguments, word in (
        (("select", work, "--budget", 3, "--model", "lenet"), "Leave out --model"),
        (("select", "--budget", 3, "--model", "lenet"), "Name a workspace, or give --model, --pool and --validation"),
    ):
        assert word in str(invoke(*arguments).exception)


@pytest.mark.parametrize(
    "option", [("--size", "224x224"), ("--mode", "L"), ("--output", "."), ("--no-compile",), ("--strict",)]
)
def test_select_in_a_workspace_refuses_options_that_it_would_ignore(work: Path, option: tuple[str, ...]) -> None:
    """Also where the value given is the default one: only what was typed counts."""
    command = [sys.executable, "-m", "rarefish", "select", str(work), "--budget", "3", *option]
    done = forked_processes.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    flag = option[0].replace("--no-", "--")
    assert done.stderr == (
        "rarefish: A workspace has its own model, images and image size, and the command writes no files. "
        f"Leave out {flag}.\n"
    )


def test_select_from_files_scales_images_as_the_model_wants(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given: list[Any] = []
    monkeypatch.setattr(
        "rarefish.selection.select", lambda model, pool, validation, **_: given.append((pool, validation))
    )
    files = ("select", "--pool", "pool", "--validation", "trusted", "--budget", 2)
    for options, size, mode, mean in (
        (("--model", "lenet"), (28, 28), "L", (0.0,)),
        (("--model", "resnet10", "--size", "40x30"), (40, 30), "RGB", (0.485, 0.456, 0.406)),
        (("--model", "net.py:make", "--mode", "L"), (224, 224), "L", (pytest.approx(0.449),)),
    ):
        invoke(*files, *options)
        for data in given.pop():
            assert (data.size, data.mode, data.mean) == (size, mode, mean)
            assert data[0][0].shape == (len(mode), *size)


@pytest.mark.skipif(weights_file() is None, reason="pip install 'rarefish[pretrained]'")
def test_select_from_files_with_the_pretrained_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    files = ("--pool", "pool", "--validation", "trusted", "--budget", 2, "--size", "32x32", "--workers", 0)
    done = invoke("select", "--model", "efficientnet-lite0", *files, "--labels", "density")
    assert done.exit_code == 0 and "2 images chosen" in done.output, done.output


def test_select_from_files_refuses_options_of_workspaces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    files = ("--model", "net.py:make", "--pool", "pool", "--validation", "trusted", "--budget", 6)
    done = invoke("select", *files, "--device", "cpu", "--json", "--trust")
    assert "Leave out --device, --trust, --json." in str(done.exception) and not (folder / "picks").exists()
