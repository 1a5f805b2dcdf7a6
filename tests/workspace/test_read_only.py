"""A workspace that can only be read: what reads works, what writes says so in one sentence."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rarefish.workspace.answers import answer, take
from rarefish.workspace.round_history import add_training
from rarefish.workspace.store import FILE, Store
from tests.labeling.serving import running, start, stop
from tests.workspace.test_connections import label_over_http
from tests.workspaces import make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A workspace with a label and a training."""
    store = make_workspace(tmp_path, pool=9, trusted=1, picks=9)
    answer(store, take(store, "ann")[0].image, "ann", "class", 1, "t")
    (store.folder / "models" / "1.pt").touch()
    add_training(store, labels_spent=1, weights="1.pt", how={}, accuracy=0.5, recall=[0.5, None, 1.0], counts=[1, 0, 1])
    store.close()
    return store


def run_read_only(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command that sees the folder through a read-only mount of its own, which ends with it."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare: a read-only mount cannot be made for the test")
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 77; exec "$@"'
    rarefish = [sys.executable, "-m", "rarefish", *command]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, str(folder), *rarefish], capture_output=True, text=True, check=False
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"a read-only mount is not allowed here: {done.stderr}")
    return done


@pytest.mark.parametrize("command", ["status", "check", "report", "export", "backup"])
def test_reading_commands_work_on_a_read_only_workspace(store: Store, tmp_path: Path, command: str) -> None:
    out = str(tmp_path / "out")
    more = {"report": ["--output", out], "export": ["--output", out], "backup": [out]}.get(command, [])
    done = run_read_only(store.folder, command, str(store.folder), *more)
    assert done.returncode == 0, done.stderr
    assert Path(out).exists() == bool(more) and not list(store.folder.glob("*-*"))


def test_reading_commands_see_what_a_server_writes_meanwhile(store: Store) -> None:
    with running(store.folder) as server:
        label_over_http(server.client, 3)
        done = run_read_only(store.folder, "status", str(store.folder))
    assert done.returncode == 0 and "ann 4" in done.stdout, done.stderr


@pytest.mark.parametrize("command", ["label", "next", "report"])
def test_writing_to_a_read_only_workspace_is_one_sentence_with_the_way_out(store: Store, command: str) -> None:
    done = run_read_only(store.folder, command, str(store.folder))
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "is read-only" in done.stderr and ("rarefish backup" in done.stderr or "--output" in done.stderr)


def test_labels_that_cannot_be_merged_where_nothing_can_be_written_are_not_overlooked(store: Store) -> None:
    server = start(store.folder)
    label_over_http(server.client, 3)
    stop(server, signal.SIGKILL)
    (store.folder / f"{FILE}-shm").unlink()
    done = run_read_only(store.folder, "status", str(store.folder))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"copy {FILE} and {FILE}-wal to a writable folder" in done.stderr
