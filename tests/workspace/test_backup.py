"""`rarefish backup`: a whole copy at any time, which is a workspace itself, and never anything that is half done."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError, WorkspaceError
from rarefish.workspace.answers import answer, progress, take
from rarefish.workspace.backup import Backup, back_up
from rarefish.workspace.round_history import add_training
from rarefish.workspace.store import FILE, Store, open_store
from rarefish.workspace.verification import verify
from tests import forked_processes
from tests.labeling.serving import running
from tests.workspace.test_connections import label_over_http, labels_in
from tests.workspaces import make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path, pool=9, trusted=1, picks=9)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-m", "rarefish", *command]
    return forked_processes.run(given, capture_output=True, text=True, check=False, has_torch=False)


def train(store: Store, weights: str) -> None:
    (store.folder / "models" / weights).write_bytes(weights.encode() * 1000)
    add_training(
        store, labels_spent=1, weights=weights, how={}, accuracy=0.5, recall=[0.5, None, 1.0], counts=[1, 0, 1]
    )


def test_a_backup_while_people_are_labeling_has_all_acknowledged_labels(store: Store) -> None:
    store.close()
    target = store.folder.parent / "copies" / "first"
    with running(store.folder) as server:
        told = label_over_http(server.client, 7)
        done = run("backup", str(store.folder), str(target), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"path": str(target), "labels": 7, "models": 0, "missing": []}
    assert labels_in(target / FILE) == told and len(told) == 7


def test_a_backup_is_a_workspace_with_labels_and_models(store: Store, tmp_path: Path) -> None:
    answer(store, take(store, "ann")[0].image, "ann", "class", 1, "t")
    train(store, "0001-1-labels.pt")
    (store.folder / "models" / "half-written.tmp").touch()
    (tmp_path / "copy").mkdir()
    done = back_up(store, tmp_path / "copy")
    assert done == Backup(tmp_path / "copy", labels=1, models=1, missing=())
    again = open_store(tmp_path / "copy")
    assert verify(again, deep=True) == [] and progress(again).by_person == {"ann": 1}
    assert [path.name for path in (tmp_path / "copy" / "models").iterdir()] == ["0001-1-labels.pt"]
    answer(again, take(again, "ann")[0].image, "ann", "class", 1, "t2")
    assert progress(store).by_person == {"ann": 1}, "the copy is a workspace of its own"
    assert (tmp_path / "copy").stat().st_mode == store.folder.stat().st_mode
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_what_is_there_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("file", "folder", "link", "work"):
        with pytest.raises(ArgumentError, match="is not an empty folder. Choose a new folder"):
            back_up(store, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine" and (tmp_path / "folder" / "mine").exists()
    done = run("backup", str(store.folder), str(tmp_path / "file" / "below"))
    assert (
        done.returncode == 1
        and done.stderr.count("\n") == 1
        and f"Cannot write the backup {tmp_path / 'file' / 'below'}: File exists" in done.stderr
    )


def test_weights_that_are_gone_or_elsewhere_are_named_and_left_out(store: Store, tmp_path: Path) -> None:
    train(store, "1.pt")
    (store.folder / "models" / "1.pt").unlink()
    (store.folder / "secret").touch()
    add_training(
        store, labels_spent=1, weights="../secret", how={}, accuracy=0.5, recall=[0.5, None, 1.0], counts=[1, 0, 1]
    )
    done = run("backup", str(store.folder), str(tmp_path / "copy"))
    assert done.returncode == 0 and "0 labels and 0 models" in done.stdout, done.stderr
    assert "models/1.pt are missing and were left out" in done.stdout
    assert not (tmp_path / "copy" / "secret").exists()


def test_a_damaged_workspace_gives_no_backup(store: Store, tmp_path: Path) -> None:
    store.set(much="x" * 40_000)
    store.close()
    content = bytearray((store.folder / FILE).read_bytes())
    content[-12288:] = b"\x55" * 12288
    (store.folder / FILE).write_bytes(content)
    with pytest.raises(WorkspaceError, match="is damaged: .* Restore the latest backup"):
        back_up(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists() and not list(tmp_path.glob(".copy*"))


def test_a_killed_backup_leaves_no_target(store: Store, tmp_path: Path) -> None:
    train(store, "1.pt")
    os.unlink(store.folder / "models" / "1.pt")
    os.mkfifo(store.folder / "models" / "1.pt")  # not a file: it must not be waited for either
    assert back_up(store, tmp_path / "first").missing == ("1.pt",)
    code = (
        "import os, shutil, sys; from pathlib import Path; from rarefish.workspace import backup\n"
        "from rarefish.workspace.store import open_store\n"
        "shutil.copymode = lambda *given: os.kill(os.getpid(), 9)\n"
        "backup.back_up(open_store(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    target = tmp_path / "second"
    command = [sys.executable, "-c", code, str(store.folder), str(target)]
    done = forked_processes.run(command, check=False, has_torch=False)
    assert done.returncode == -9 and not target.exists() and len(list(tmp_path.glob(".second.*.unfinished"))) == 1
    assert back_up(store, target).folder == target


def test_check_says_what_a_copy_must_contain(store: Store) -> None:
    store.close()
    assert json.loads(run("check", str(store.folder), "--json").stdout) == {"problems": [], "notes": []}
    with running(store.folder) as server:
        label_over_http(server.client, 1)
        done = run("check", str(store.folder))
        assert done.returncode == 0 and "must contain both files and the folder models" in done.stdout
        assert "No problems found." in done.stdout and "`rarefish backup`" in done.stdout


def test_a_copy_of_an_interrupted_workspace_is_none(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(WorkspaceError, match="is incomplete, because the creation of the workspace was interrupted"):
        open_store(tmp_path)
