"""Connections to the store's file: what closing leaves, and what happens when files are moved, removed or replaced."""

import os
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rarefish.errors import WorkspaceError
from rarefish.workspace.answers import answer, take
from rarefish.workspace.store import FILE, Store, open_store
from rarefish.workspace.verification import verify
from tests import forked_processes
from tests.labeling.serving import Client, running, start, stop
from tests.workspaces import CLASSES, add_round, make_workspace

HANG_S = 600
"""A guard against tests that never end, far beyond what a busy machine needs."""


def labels_in(file: Path) -> set[str]:
    """The tickets in a copy of the database file alone, as somebody would make who knows nothing of a -wal."""
    copy = file.with_name(f"copy-{time.monotonic_ns()}.db")
    shutil.copyfile(file, copy)
    with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as connection:
        return {ticket for (ticket,) in connection.execute("SELECT ticket FROM label")}


def label_over_http(client: Client, count: int) -> set[str]:
    """Tickets of answers that the server acknowledged."""
    told = set()
    for task in client.post("/api/next", {"who": "ann", "count": count, "held": []}).json()["tasks"]:
        ticket = f"ticket-{len(told)}"
        body = {"image": task["image"], "who": "ann", "answer": "class", "class": 1, "ticket": ticket}
        assert client.post("/api/answer", body).status == 200
        told.add(ticket)
    return told


def post_answer(client: Client, image: int, ticket: str) -> tuple[int, str]:
    body = {"image": image, "who": "ann", "answer": "class", "class": 1, "ticket": ticket}
    reply = client.post("/api/answer", body)
    return reply.status, reply.content.decode()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path, pool=9, trusted=1, picks=9)


def test_closing_leaves_all_labels_in_the_file_alone(store: Store) -> None:
    image = take(store, "ann")[0].image
    answered = threading.Thread(target=lambda: answer(store, image, "ann", "class", 1, "t"))
    answered.start()
    answered.join()
    assert labels_in(store.folder / FILE) == set()
    store.close()
    assert labels_in(store.folder / FILE) == {"t"} and not list(store.folder.glob("*-wal"))
    assert len(take(store, "ann", 9)) == 8, "a store that is used again opens the file again"
    store.close()


def test_closing_merges_while_another_process_has_the_store_open(store: Store) -> None:
    other = open_store(store.folder)
    answer(store, take(store, "ann")[0].image, "ann", "class", 1, "t")
    store.close()
    assert labels_in(store.folder / FILE) == {"t"}
    other.close()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_served_workspace_that_is_ended_has_all_labels_in_the_file_alone(store: Store, ending: int) -> None:
    store.close()
    server = start(store.folder)
    told = label_over_http(server.client, 5)
    stop(server, ending)
    assert len(told) == 5 and labels_in(store.folder / FILE) == told
    assert not list(store.folder.glob("*-wal"))


def test_labels_are_merged_into_the_file_while_the_page_is_served(store: Store) -> None:
    store.close()
    soon = "from rarefish.labeling import api\napi.MERGE_EVERY_S = 2.0"
    with running(store.folder, before=soon) as server:
        told = label_over_http(server.client, 5)
        assert not told <= labels_in(store.folder / FILE)
        end = time.monotonic() + HANG_S
        while not told <= labels_in(store.folder / FILE):
            assert time.monotonic() < end
            time.sleep(0.1)


def test_the_next_command_merges_what_a_killed_server_left(store: Store) -> None:
    store.close()
    server = start(store.folder)
    told = label_over_http(server.client, 5)
    stop(server, signal.SIGKILL)
    assert not told <= labels_in(store.folder / FILE)
    command = [sys.executable, "-m", "rarefish", "status", str(store.folder)]
    forked_processes.run(command, check=True, capture_output=True, has_torch=False)
    assert labels_in(store.folder / FILE) == told and not list(store.folder.glob("*-wal"))


def move_folder(folder: Path) -> Callable[[], object]:
    away = folder.rename(folder.with_name("away"))
    return lambda: away.rename(folder)


def move_file(folder: Path) -> Callable[[], object]:
    away = (folder / FILE).rename(folder / "away.db")
    return lambda: away.rename(folder / FILE)


def replace_by_an_older_copy(folder: Path) -> Callable[[], object]:
    (folder.parent / "older.db").rename(folder / "older.db")
    return replace_file(folder, folder / "older.db")


def replace_by_an_empty_file(folder: Path) -> Callable[[], object]:
    (folder / "empty").touch()
    return replace_file(folder, folder / "empty")


def replace_file(folder: Path, other: Path) -> Callable[[], object]:
    os.link(folder / FILE, folder / "away.db")
    other.rename(folder / FILE)
    return lambda: (folder / "away.db").rename(folder / FILE)


def replace_by_an_older_folder(folder: Path) -> Callable[[], object]:
    back = move_folder(folder)
    folder.mkdir()
    shutil.copyfile(folder.parent / "older.db", folder / FILE)

    def put_back() -> None:
        shutil.rmtree(folder)
        back()

    return put_back


def replace_by_another_workspace(folder: Path) -> Callable[[], object]:
    back = move_folder(folder)
    other = make_workspace(folder.parent / "other", pool=9, trusted=1, picks=9)
    other.close()
    shutil.copytree(other.folder, folder)

    def put_back() -> None:
        shutil.rmtree(folder)
        back()

    return put_back


HARMS = (
    move_folder,
    move_file,
    replace_by_an_older_copy,
    replace_by_an_older_folder,
    replace_by_an_empty_file,
    replace_by_another_workspace,
)


@pytest.mark.parametrize("harm", HARMS)
def test_no_answer_is_acknowledged_that_the_workspace_does_not_get(
    store: Store, harm: Callable[[Path], Callable[[], object]]
) -> None:
    images = [task.image for task in take(store, "ann", 9)]
    store.close()
    with running(store.folder) as server:
        with closing(sqlite3.connect(store.folder.parent / "older.db")) as older, store.reading() as connection:
            connection.backup(older)
        assert post_answer(server.client, images[0], "ticket-before")[0] == 200
        put_back = harm(store.folder)
        for _ in range(3):
            status, reason = post_answer(server.client, images[1], "ticket-while")
            assert status == 503 and ("was moved or removed" in reason or "was replaced" in reason), reason
        put_back()
        assert post_answer(server.client, images[1], "ticket-while")[0] == 200
        assert post_answer(server.client, images[2], "ticket-after")[0] == 200
    assert labels_in(store.folder / FILE) == {"ticket-before", "ticket-while", "ticket-after"}
    assert not verify(open_store(store.folder))


def test_a_copy_with_all_labels_may_take_the_place_of_the_file(store: Store) -> None:
    images = [task.image for task in take(store, "ann", 9)]
    store.close()
    with running(store.folder) as server:
        assert post_answer(server.client, images[0], "ticket-before")[0] == 200
        shutil.copytree(store.folder, store.folder.with_name("copy"))
        shutil.rmtree(store.folder)
        assert post_answer(server.client, images[1], "ticket-while")[0] == 503
        store.folder.with_name("copy").rename(store.folder)
        assert post_answer(server.client, images[1], "ticket-while")[0] == 200
    assert labels_in(store.folder / FILE) == {"ticket-before", "ticket-while"}


@pytest.mark.parametrize("suffixes", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_labels_outlive_the_removal_of_the_files_beside_the_database(store: Store, suffixes: tuple[str, ...]) -> None:
    images = [task.image for task in take(store, "ann", 9)]
    store.close()
    with running(store.folder) as server:
        assert post_answer(server.client, images[0], "ticket-before")[0] == 200
        for suffix in suffixes:
            os.unlink(store.folder / f"{FILE}{suffix}")
        assert post_answer(server.client, images[1], "ticket-after")[0] == 200
        server.process.kill()
        server.process.wait()
        open_store(store.folder).close()
        assert labels_in(store.folder / FILE) == {"ticket-before", "ticket-after"}


def test_a_thread_that_comes_late_does_not_open_another_file(store: Store) -> None:
    move_folder(store.folder)
    other = make_workspace(store.folder.parent / "other", pool=2, trusted=1)
    other.close()
    shutil.copytree(other.folder, store.folder)
    said: list[str] = []

    def write() -> None:
        try:
            store.set(much="x")
        except WorkspaceError as error:
            said.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert len(said) == 1 and "was replaced" in said[0]
    assert "much" not in open_store(store.folder).settings()


def test_a_commit_into_a_file_that_moved_meanwhile_is_not_acknowledged(store: Store) -> None:
    def write() -> None:
        with store.writing() as connection:
            connection.execute("INSERT INTO setting VALUES ('late', '1')")
            move_folder(store.folder)

    with pytest.raises(WorkspaceError, match="was moved or removed while it was in use"):
        write()


def test_four_threads_go_on_while_the_files_beside_the_database_vanish(store: Store) -> None:
    add_more(store, 60)
    images = [task.image for task in take(store, "ann", 60)]
    told: list[str] = []

    def work(part: int) -> None:
        for image in images[part::4]:
            try:
                answer(store, image, "ann", "class", part % len(CLASSES), f"t{image}")
                told.append(f"t{image}")
            except WorkspaceError:
                pass  # not acknowledged

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for suffix in ("-wal", "-shm"):
            (store.folder / f"{FILE}{suffix}").unlink(missing_ok=True)
        time.sleep(0.02)
    store.close()
    assert told and set(told) <= labels_in(store.folder / FILE)
    assert all("images are missing" in sentence for sentence in verify(open_store(store.folder)))


def add_more(store: Store, count: int) -> None:
    """Rows of images that are asked about; their files do not matter here."""
    with store.writing() as connection:
        rows = [(f"more {number}".encode(), f"more {number}") for number in range(count)]
        connection.executemany(
            "INSERT INTO image (part, path, hash, bytes, modified, width, height, state) "
            "VALUES ('pool', ?, ?, 1, 1, 1, 1, 'ready')",
            rows,
        )
    add_round(store, count)
