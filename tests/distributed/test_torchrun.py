"""Several processes choose what a single process chooses, also when one of them is killed."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rarefish import Selection, select
from rarefish.distributed.executor import ShardMatches, SingleProcess
from rarefish.distributed.torchrun import TorchrunExecutor
from rarefish.errors import ArgumentError
from rarefish.matching import distinct, match_batches
from rarefish.training.jobs import fit_each
from rarefish.training.rotation import show_rotations
from tests import forked_processes
from tests.cases import Plain
from tests.forked_processes import FORKED_RANKS
from tests.test_matching import pool_with_copies
from tests.trainer import Files, train
from tests.worker import Slow, parts

ROOT = Path(__file__).parents[2]


def start(
    folder: Path, num_ranks: int, *arguments: object, restarts: int = 0, module: str = "worker", fresh: bool
) -> "subprocess.Popen[bytes]":
    """torchrun in a `fresh` interpreter, or in a fork of one that has imported torch and rarefish."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command += [f"--max-restarts={restarts}", *FORKED_RANKS, str(ROOT / f"tests/{module}.py")]
    command += [str(folder), *map(str, arguments)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    popen = subprocess.Popen if fresh else forked_processes.Popen
    return popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def alone(labels: str, num_pool: int, folder: Path) -> str:
    return str(select_alone(labels, num_pool, folder).rows())


def select_alone(labels: str, num_pool: int, folder: Path) -> Selection:
    images, validation = parts(num_pool)
    torch.manual_seed(0)
    pool = Slow(images, folder=folder, seconds=0)
    model = Plain().double()
    return select(model, pool, validation, budget=12, labels=labels, batch_size=7)


def indices(rows: str) -> list[tuple[int, int, int]]:
    return [(i, center, label) for i, _, center, label in eval(rows)]


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "labels"), [(2, "posterior"), (4, "density")])
def test_processes_choose_what_one_chooses(num_ranks: int, labels: str, tmp_path: Path) -> None:
    process = start(tmp_path, num_ranks, labels, 0, 50, 9, fresh=num_ranks == 2)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said.decode()
    chosen = select_alone(labels, 50, tmp_path)
    for rank in range(num_ranks):
        assert indices((tmp_path / f"picks-{rank}-of-{num_ranks}").read_text()) == indices(str(chosen.rows()))
        classes = torch.load(tmp_path / f"classes-{rank}.pt")
        torch.testing.assert_close(classes, chosen.class_probabilities, rtol=1e-3, atol=1e-4)
        assert torch.equal(classes, torch.load(tmp_path / "classes-0.pt"))


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Two network namespaces with a cable between them: name -> address."""
    made = {f"rf{os.getpid()}{end}": f"10.77.0.{end}" for end in (1, 2)}
    first, second = made

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in made:
            ip("netns", "add", name)
        ip("link", "add", "cable1", "netns", first, "type", "veth", "peer", "name", "cable2", "netns", second)
        for end, (name, address) in enumerate(made.items(), start=1):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", f"cable{end}")
            ip("-n", name, "link", "set", f"cable{end}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield made
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not allowed here: {error}")
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


ON_HOST = """
import ctypes, os, runpy, sys

CLONE_NEWNET = 0x40000000
assert ctypes.CDLL(None).setns(os.open(sys.argv.pop(1), os.O_RDONLY), CLONE_NEWNET) == 0
runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
"""
"""What `ip netns exec NAME python -m torch.distributed.run …` does, for a fork, which need not import torch again."""


@pytest.mark.slow
def test_two_hosts_choose_what_one_chooses(hosts: dict[str, str], tmp_path: Path) -> None:
    """Each sees the other by network alone; what they keep on disk is apart."""
    first, processes = next(iter(hosts.values())), []
    for number, name in enumerate(hosts, start=1):
        command = [sys.executable, "-c", ON_HOST, f"/run/netns/{name}", "--nnodes=2"]
        command += ["--nproc-per-node=2", f"--node-rank={number - 1}", f"--master-addr={first}", "--master-port=29511"]
        (tmp_path / name).mkdir()
        command += [*FORKED_RANKS, str(ROOT / "tests/worker.py"), str(tmp_path / name), "density", "0", "50", "9"]
        environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        environment["GLOO_SOCKET_IFNAME"] = f"cable{number}"
        environment = {**os.environ, **environment}
        processes.append(forked_processes.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE))
    for process in processes:
        _, said = process.communicate(timeout=1800)
        assert process.returncode == 0, said.decode()
    found = {path.name: indices(path.read_text()) for path in tmp_path.glob("*/picks-*")}
    assert sorted(found) == [f"picks-{rank}-of-4" for rank in range(4)]
    expected = indices(alone("density", 50, tmp_path))
    assert all(picks == expected for picks in found.values())


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_training_together_is_training_alone(num_ranks: int, tmp_path: Path) -> None:
    process = start(tmp_path, num_ranks, module="trainer", fresh=False)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said.decode()
    files: list[Files] = []
    alone = {
        "tensor": train(fit_each),
        "turned": train(fit_each, show_rotations),
        "stored": train(fit_each, files=files),
    }
    found = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(num_ranks)]
    for kind, model in alone.items():
        for name, value in model.state_dict().items():
            assert torch.equal(value, alone["stored" if kind == "tensor" else kind].state_dict()[name])
            for own in found:
                torch.testing.assert_close(own[kind][name], value, rtol=1e-6, atol=1e-9)
    # Norms see other images than alone, but all processes end with the same.
    torch.testing.assert_close(
        [own["norms"] for own in found[1:]], [found[0]["norms"]] * (num_ranks - 1), rtol=0, atol=0
    )
    # Of each batch, a process reads its own images alone; the last of an epoch has 3, and is everyone's.
    batches = torch.tensor(files[0].read).split([7, 7, 7, 3] * 3)
    for rank, own in enumerate(found):
        expected = [batch if len(batch) == 3 else batch[rank::num_ranks] for batch in batches]
        assert own["read"] == torch.cat(expected).tolist()


def once_more(rows: Sequence[tuple[Any, ...]], reads: Counter[int]) -> Counter[int]:
    """The picks, each of which is read again at the end for its class probabilities."""
    picks = Counter(row[0] for row in rows)
    assert picks <= reads
    return picks


def wait_for(what: Callable[[], bool], seconds: float = 1800) -> None:
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.05)


def test_a_killed_process_is_started_again_and_no_finished_shard_is_scored_twice(tmp_path: Path) -> None:
    process = start(tmp_path, 2, "density", 0.03, 120, 10, restarts=2, fresh=False)
    shards = tmp_path / "shards"
    wait_for(lambda: len(list(shards.glob("*-of-*.pt"))) >= 4)
    done = {int(path.name.split("-")[2]) for path in shards.glob("*-of-*.pt")}
    victim = next(int(path.name.split("-")[1]) for path in tmp_path.glob("read-*"))
    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said.decode()
    picks = indices((tmp_path / "picks-0-of-2").read_text())
    assert picks == indices(alone("density", 120, tmp_path / "shards"))
    reads = Counter(int(line) for path in tmp_path.glob("read-*") for line in path.read_text().split())
    reads -= once_more(picks, reads)
    finished = [i for number in done for i in range(number * 10, number * 10 + 10) if i >= 8]  # 8 are looked at first
    assert len(done) >= 4 and all(reads[i] == 1 for i in finished)


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 60), st.integers(0, 3), st.integers(1, 20), st.integers(1, 7), st.integers(0, 999))
def test_any_number_of_shards_gives_one_table(num: int, copies: int, depth: int, count: int, seed: int) -> None:
    pool, centers = pool_with_copies(num, copies, seed), pool_with_copies(4, 0, seed + 1)
    from rarefish.kernels import standardize

    def match_shard(index: Sequence[int], depth: int) -> ShardMatches:
        rows = torch.tensor(list(index), dtype=torch.long)
        batches = [pool[part] for part in rows.split(5)] if len(rows) else []
        return ShardMatches(match_batches(batches, standardize(centers), torch.zeros(4).long(), "fisher", depth), {})

    left = range(len(pool))
    executor = TorchrunExecutor(model=nn.Identity(), shard_size=-(-len(pool) // count))
    expected, found = (
        SingleProcess().map_shards(match_shard, left, depth).matches,
        executor.map_shards(match_shard, left, depth).matches,
    )
    assert torch.equal(found.key, expected.key) and torch.equal(found.label, expected.label)
    assert len(distinct(found, depth).index) == min(depth, len(pool))


def test_a_plan_on_disk_is_used_only_for_the_same_model_and_settings(tmp_path: Path) -> None:
    images, validation = parts(40)
    pool, calls = Slow(images, folder=tmp_path, seconds=0), []
    torch.manual_seed(0)
    model = Plain().double()
    executor = TorchrunExecutor(
        model=model, folder=tmp_path / "shards", settings="a", shard_size=15, tell=lambda *_: None
    )

    def choose(executor: TorchrunExecutor) -> list[tuple[int, float, int, int]]:
        for path in tmp_path.glob("read-*"):
            path.unlink()
        assert executor.model is not None
        chosen = select(executor.model, pool, validation, budget=5, layers=("conv1", "conv2"), executor=executor)
        calls.append(sum(len(path.read_text().split()) for path in tmp_path.glob("read-*")))
        return chosen.rows()

    first = choose(executor)
    assert choose(executor) == first and calls[1] < calls[0] / 2
    assert choose(replace(executor, settings="b")) == first and calls[2] == calls[0]
    another = Plain().double()
    other = replace(executor, model=another, settings="b")
    assert choose(other) != first
    (tmp_path / "shards" / "plan.pt").write_bytes(b"not a plan")
    assert choose(replace(executor, settings="b")) == first
    executor.clear()
    assert not (tmp_path / "shards").exists()
    with pytest.raises(ArgumentError, match="shard_size must be at least 1, not 0"):
        replace(executor, shard_size=0)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def put_another_shard(path: Path) -> None:
    kept = torch.load(path)
    torch.save({**kept, "run": "0" * 64, "label": kept["label"] * 0}, path)


def put_a_list(path: Path) -> None:
    torch.save([1, 2], path)


def put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [cut_off, put_another_shard, put_a_list, put_a_pipe, Path.unlink])
@pytest.mark.parametrize("what", ["plan.pt", "*-0-of-*.pt"])
def test_a_damaged_or_foreign_file_is_made_again(damage: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    if (damage, what) == (put_another_shard, "plan.pt"):
        pytest.skip("a plan has no shard's name in it")
    images, validation = parts(40)
    pool, torch_seed = Slow(images, folder=tmp_path, seconds=0), torch.manual_seed(0)
    model = Plain().double()
    executor = TorchrunExecutor(model=model, folder=tmp_path / "resume", shard_size=15)

    def choose() -> tuple[list[tuple[int, float, int, int]], Counter[int]]:
        for path in tmp_path.glob("read-*"):
            path.unlink()
        rows = select(
            model, pool, validation, budget=5, layers=("conv1", "conv2"), labels="density", executor=executor
        ).rows()
        reads = Counter(int(i) for path in tmp_path.glob("read-*") for i in path.read_text().split())
        return rows, reads - once_more(rows, reads)

    assert torch_seed is not None
    first, _ = choose()
    again, read = choose()
    assert again == first and set(read) <= set(range(8))
    (path,) = (tmp_path / "resume").glob(what)
    damage(path)
    mended, read = choose()
    assert mended == first and set(read) >= set(range(8, 13)) and (20 in read) == (what == "plan.pt")
    assert choose()[0] == first
