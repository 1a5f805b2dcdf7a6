"""A short labeling session with a fault at each of its writes in turn; run with the library of faults.c preloaded.

    LD_PRELOAD=faults.so python -m tests.workspace.fault_session FOLDER make
    LD_PRELOAD=faults.so python -m tests.workspace.fault_session FOLDER label

Prints one JSON object: the calls that the session makes, and what was lost or doubled after a fault at one of them.
"""

import ctypes
import gc
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from rarefish.errors import WorkspaceError
from rarefish.workspace.answers import answer, take, undo
from rarefish.workspace.store import Store, create_store, open_store
from rarefish.workspace.verification import verify
from tests.workspaces import CLASSES, add_round

POOL = 6
ATTEMPTS = 8
"""As often as a page sends an answer again; every fault is over by then."""
DIED = 137

NONE, IO_ERROR, DISK_FULL, SHORT_WRITE, DIE, DIE_HALF_WRITTEN, POWER_CUT = range(7)
DEADLY = (DIE, DIE_HALF_WRITTEN, POWER_CUT)
EVERYWHERE = ((IO_ERROR, 1), (POWER_CUT, 1))
KINDS = {
    "w": (*EVERYWHERE, (DISK_FULL, 3), (SHORT_WRITE, 1), (DIE_HALF_WRITTEN, 1)),
    "s": (*EVERYWHERE, (DIE, 1)),
    "t": (*EVERYWHERE, (DIE, 1), (DISK_FULL, 1)),
    "c": (*EVERYWHERE, (DIE, 1), (DISK_FULL, 1)),
    "u": (*EVERYWHERE, (DIE, 1)),
    "r": (*EVERYWHERE, (DIE, 1)),
}
"""What can happen at a call that writes, syncs, truncates, creates, removes or renames: (fault, how often)."""

Row = tuple[Any, ...]
Tell = Callable[[str], object]
Session = Callable[[Path, Tell], None]


class Case(NamedTuple):
    """The fault that begins at the session's call `number` and lasts for `times` calls."""

    number: int
    kind: int
    times: int


def make(folder: Path, tell: Tell) -> None:
    """A workspace with images that people are asked about, as `init` and `select` leave it."""
    store = persist(lambda: create_store(folder, CLASSES))
    persist(lambda: fill(store))
    tell("made")
    store.close()


def label(folder: Path, tell: Tell) -> None:
    """What a server does for one annotator; `tell` gets each ticket after the store has accepted it."""
    store = persist(lambda: open_store(folder))
    one, two, three, four, *_ = persist(lambda: asked_images(store))
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("", lambda: take(store, "ann", 4)),
        ("t1", lambda: answer(store, one, "ann", "class", 1, "t1")),
        ("t2", lambda: answer(store, two, "ann", "none", None, "t2")),
        ("t3", lambda: answer(store, three, "ann", "class", 2, "t3")),
        ("u1", lambda: undo(store, "ann", "u1")),
        ("t4", lambda: answer(store, three, "ann", "class", 0, "t4")),
        ("", store.checkpoint),  # as the server does every few seconds
        ("", store.close),  # a restart
        ("t5", lambda: answer(store, four, "ann", "skip", None, "t5")),
        ("t5", lambda: answer(store, four, "ann", "skip", None, "t5")),  # a page that did not hear of the first
    )
    for ticket, step in steps:
        persist(step)
        if ticket:
            tell(ticket)
    store.close()


def persist(write: Callable[[], Any]) -> Any:
    """Tries again after an error, with the same ticket, as a page does that was answered 503."""
    for _ in range(ATTEMPTS - 1):
        with suppress(WorkspaceError):
            return write()
    return write()


def fill(store: Store) -> None:
    """Images that were asked about, as `init` and `select` leave them."""
    with store.writing() as connection:
        if not connection.execute("SELECT 1 FROM image").fetchone():
            rows = [("pool", f"{number}".encode(), None) for number in range(POOL)] + [("validation", b"v", 0)]
            connection.executemany(
                "INSERT INTO image (part, path, hash, bytes, modified, width, height, class, state) "
                "VALUES (?, ?, '', 1, 1, 1, 1, ?, 'ready')",
                rows,
            )
    with store.reading() as connection:
        is_asked = connection.execute("SELECT 1 FROM pick").fetchone()
    if not is_asked:
        add_round(store, POOL)


def asked_images(store: Store) -> list[int]:
    with store.reading() as connection:
        return [image for (image,) in connection.execute("SELECT image FROM pick ORDER BY rank")]


def labels(store: Store) -> list[Row]:
    """All rows of labels, without what depends on the time."""
    query = (
        "SELECT one.ticket, one.image, one.who, one.answer, one.class, other.ticket FROM label AS one "
        "LEFT JOIN label AS other ON other.id = one.undoes ORDER BY one.id"
    )
    with store.reading() as connection:
        return [tuple(row) for row in connection.execute(query)]


def in_a_process(work: Callable[[Tell], object]) -> tuple[int, list[str]]:
    """Runs the work in a child, which may die; its exit status, and the lines that it told before that."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            work(lambda line: os.write(writing, f"{line}\n".encode()))
            status = 0
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines


def in_this_process(work: Callable[[Tell], object]) -> tuple[int, list[str]]:
    """The same for work that does not die, which costs less."""
    told: list[str] = []
    try:
        work(told.append)
    except Exception as error:
        return 1, [*told, f"{type(error).__name__}: {error}"]
    return 0, told


def look_after(folder: Path, told: list[str], whole: list[Row]) -> Iterator[str]:
    """What a process that comes after the fault finds wrong; it ends by doing what was left to do."""
    found = labels(open_store(folder)) if told else []
    tickets = [row[0] for row in found]
    yield from (f"{ticket} was acknowledged and is lost" for ticket in told if ticket not in ("made", *tickets))
    yield from (f"{ticket} is there {tickets.count(ticket)} times" for ticket in told if tickets.count(ticket) > 1)
    yield from (f"{row} is not what was answered" for row in found if row not in whole)
    if found != whole:
        make(folder, ignore)
        label(folder, ignore)
    store = open_store(folder)
    if labels(store) != whole:
        yield f"after going on there is {labels(store)}"
    yield from verify(store)


def ignore(_: str) -> None:
    pass


class Faults:
    """The preloaded library, which must be told where files are watched."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.faults_calls.restype = ctypes.c_char_p

    @contextmanager
    def at(self, folder: Path, case: Case) -> Iterator[None]:
        self.library.faults_arm(os.fsencode(folder), *case)
        try:
            yield
        finally:
            self.library.faults_disarm()

    def calls(self) -> str:
        """The kinds of all calls while the fault was armed last, a letter each."""
        return self.library.faults_calls().decode()


def try_all(part: Session, before: Path, base: Path, look: Callable[..., list[str]]) -> tuple[str, list[str]]:
    """The calls of one part of the session, and what is wrong after a fault at any of them, a sentence each."""
    faults, folder = Faults(), base / "case"

    def try_one(case: Case) -> tuple[int, list[str]]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)

        def work(tell: Tell) -> None:
            with faults.at(folder, case):
                part(folder, tell)

        return (in_a_process if case.kind in DEADLY else in_this_process)(work)

    try_one(Case(0, NONE, 0))
    calls, wrong = faults.calls(), []
    for case in [Case(at + 1, *kind) for at, what in enumerate(calls) for kind in KINDS[what]]:
        status, told = try_one(case)
        found = look(folder, told) if status in (0, DIED) else [f"the session ended with {status}: {told}"]
        wrong += [f"{part.__name__}, {case}: {sentence}" for sentence in found]
    return calls, wrong


def serve_looks(pipe: Connection, whole: list[Row]) -> None:
    """A process without faults, which looks at what each of them left."""
    while asked := pipe.recv():
        folder, told = asked
        try:
            pipe.send(list(look_after(folder, told, whole)))
        except Exception as error:
            pipe.send([f"{type(error).__name__}: {error}"])


def main() -> None:
    base = Path(sys.argv[1])
    (base / "empty").mkdir()

    def undisturbed(tell: Tell) -> None:
        make(base / "made", ignore)
        shutil.copytree(base / "made", base / "labeled")
        label(base / "labeled", ignore)
        tell(json.dumps(labels(open_store(base / "labeled"))))

    whole = [tuple(row) for row in json.loads(in_a_process(undisturbed)[1][0])]
    gc.freeze()
    ours, theirs = Pipe()
    looker = get_context("fork").Process(target=serve_looks, args=(theirs, whole))
    looker.start()

    def look(folder: Path, told: list[str]) -> list[str]:
        ours.send((folder, told))
        return ours.recv()

    part, before = {"make": (make, base / "empty"), "label": (label, base / "made")}[sys.argv[2]]
    calls, wrong = try_all(part, before, base, look)
    ours.send(None)
    looker.join()
    print(json.dumps({"calls": calls, "labels": len(whole), "wrong": wrong}))


if __name__ == "__main__":
    main()
