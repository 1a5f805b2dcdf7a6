"""Pools of worker processes end with the process that started them, and when one of them is killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workspaces import make_images

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the processes are found in /proc")

HANG_S = 600
"""A guard against tests that never end, far beyond what a busy machine needs."""
CODE = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from rarefish.data.worker_processes import end_with_parent
if __name__ == "__main__":
    pool = ProcessPoolExecutor(2, mp_context=get_context(sys.argv[1]), initializer=end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(10_000)
"""

KILLED_EARLY = """
import multiprocessing, os, signal, sys, time
from concurrent.futures.process import BrokenProcessPool
from rarefish.data.worker_processes import worker_pool

def kill_the_first():
    os.kill(first, signal.SIGKILL)
    while not pool._broken:
        time.sleep(0.01)

def start_late(process):
    is_second = len(multiprocessing.active_children()) == 1
    if is_second and sys.argv[2] == "before":
        kill_the_first()
    start(process)
    if is_second and sys.argv[2] == "after":
        kill_the_first()

if __name__ == "__main__":
    kind = multiprocessing.get_context(sys.argv[1]).Process
    start, kind.start = kind.start, start_late
    try:
        with worker_pool(2, sys.argv[1]) as pool:
            first = pool.submit(os.getpid).result()
            for _ in range(3):
                pool.submit(time.sleep, 10_000).add_done_callback(print)
            pool.submit(os.getpid).result()
    except BrokenProcessPool:
        print("broken", flush=True)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def below(pid: int) -> set[int]:
    """All processes that this one started, and those that they started."""
    found = set[int]()
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= {int(child), *below(int(child))}
    except OSError:
        pass  # it has just ended
    return found


def wait_for_the_end(pids: set[int]) -> None:
    end = time.monotonic() + HANG_S
    while any(map(is_running, pids)):
        assert time.monotonic() < end, [pid for pid in pids if is_running(pid)]
        time.sleep(0.05)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_end_with_a_killed_parent(method: str, tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text(CODE)
    with subprocess.Popen([sys.executable, tmp_path / "go.py", method], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        started = below(process.pid)
        assert worker in started
        process.kill()
    wait_for_the_end(started)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_ends_if_a_worker_is_killed_while_another_one_starts(method: str, moment: str, tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text(KILLED_EARLY)
    command = [sys.executable, tmp_path / "go.py", method, moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.splitlines()[-1:] == ["broken"], done.stderr


@pytest.mark.slow
def test_init_leaves_no_process_behind_when_it_is_killed(tmp_path: Path) -> None:
    make_images(tmp_path, pool=1_500, trusted=2)
    folders = ["--pool", str(tmp_path / "pool"), "--validation", str(tmp_path / "validation")]
    command = [sys.executable, "-m", "rarefish", "init", str(tmp_path / "work"), *folders, "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        started = set[int]()
        while process.poll() is None and len(started) < 4:  # the fork server, two workers, the resource tracker
            started = below(process.pid)
        process.kill()
    assert len(started) >= 4
    wait_for_the_end(started)
