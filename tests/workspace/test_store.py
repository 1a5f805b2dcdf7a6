"""The store: whole transactions, rows that never change, several processes, a clear word when it cannot be used."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError, WorkspaceError
from rarefish.workspace.answers import answer, take
from rarefish.workspace.store import FILE, create_store, open_store
from tests import forked_processes
from tests.workspaces import CLASSES, make_workspace


def test_a_workspace_comes_back_as_it_was(tmp_path: Path) -> None:
    create_store(tmp_path / "new", CLASSES).set(model="resnet18", size=[32, 32])
    again = create_store(tmp_path / "new", CLASSES)
    assert again.classes() == list(CLASSES) and again.settings() == {"model": "resnet18", "size": [32, 32]}
    with pytest.raises(WorkspaceError, match="other classes: cat, dog, owl"):
        create_store(tmp_path / "new", ("cat", "dog"))


@pytest.mark.parametrize("classes", [(), ("a",), ("cat", "Cat"), ("a", "a"), ("a", " b"), ("a", ""), ("a", "b\n")])
def test_classes_that_would_be_taken_for_one_another(classes: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError):
        create_store(tmp_path / "new", classes)
    assert not (tmp_path / "new").exists()


def test_what_is_no_workspace_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="is not a workspace. Create one with: rarefish init"):
        open_store(tmp_path)
    (tmp_path / FILE).write_bytes(b"not a database at all, but long enough to be read as one" * 50)
    with pytest.raises((WorkspaceError, sqlite3.DatabaseError), match=r"damaged|not a database"):
        open_store(tmp_path)
    create_store(tmp_path / "new", CLASSES)


@pytest.mark.parametrize("version", [1, 99])
def test_a_workspace_of_another_version_is_refused(version: int, tmp_path: Path) -> None:
    create_store(tmp_path, CLASSES)
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    message = rf"another version of rarefish \(format {version}; this version reads 2\)\. Use that version, or create"
    for opened in (open_store, lambda folder: create_store(folder, CLASSES)):
        with pytest.raises(WorkspaceError, match=message):
            opened(tmp_path)


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    store = create_store(tmp_path, CLASSES)

    def half() -> None:
        with store.writing() as connection:
            for value in "12":
                connection.execute("INSERT INTO setting VALUES ('half', ?)", (value,))

    with pytest.raises(sqlite3.IntegrityError):
        half()
    assert store.settings() == {}


def test_labels_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=1)
    (task,) = take(store, "ann")
    answer(store, task.image, "ann", "class", 1, "t1")
    for statement in ("UPDATE label SET class = 2", "DELETE FROM label"):
        with pytest.raises(sqlite3.IntegrityError, match="labels are never"), store.writing() as connection:
            connection.execute(statement)


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=1)
    with store.reading() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    store._connections.own().execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(WorkspaceError, match="The disk is full, and nothing was changed"):
        store.set(much="x" * 100_000)
    store._connections.own().execute("PRAGMA max_page_count = 1000000")
    assert "much" not in store.settings() and len(take(store, "ann", 3)) == 1


def test_only_one_process_does_a_thing_at_a_time_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    store = create_store(tmp_path / "work", CLASSES)
    script = (
        "import sys, time; from pathlib import Path; from rarefish.workspace.store import open_store\n"
        "with open_store(Path(sys.argv[1])).alone('training'): print('in', flush=True); time.sleep(10_000)"
    )
    command = [sys.executable, "-c", script, str(store.folder)]
    other = forked_processes.Popen(command, stdout=subprocess.PIPE, text=True, has_torch=False)
    assert other.stdout is not None and other.stdout.readline() == "in\n"
    with pytest.raises(WorkspaceError, match="Another process is training"), store.alone("training"):
        pass
    with store.alone("selecting"):
        pass
    other.kill()
    other.wait()
    other.stdout.close()
    with store.alone("training"):
        pass


def test_a_lock_file_is_never_emptied_and_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    store = create_store(tmp_path / "work", CLASSES)
    (store.folder / ".training.lock").write_text("mine")
    with store.alone("training"):
        pass
    assert (store.folder / ".training.lock").read_text() == "mine"
    target = tmp_path / "precious"
    target.write_text("mine")
    (store.folder / ".selecting.lock").symlink_to(target)
    with pytest.raises(WorkspaceError, match=r"\.selecting\.lock is a symbolic link"), store.alone("selecting"):
        pass
    assert target.read_text() == "mine"
