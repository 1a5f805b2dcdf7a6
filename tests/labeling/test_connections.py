"""Connections that nobody uses, too many of them, and clients that take their time: real sockets on a real server."""

import logging
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from rarefish.labeling import connections
from rarefish.labeling.connections import OncePerMessage
from rarefish.workspace.answers import votes
from rarefish.workspace.store import Store
from tests.labeling.serving import Running, running
from tests.workspaces import make_workspace

FLOOD = """
import resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, count = map(int, sys.argv[1:])
lines = []
for number in range(count):
    line = socket.create_connection(("127.0.0.1", port), timeout=60)
    if number % 2:
        line.sendall(b"GET / HTTP/1.1\\r\\nHost: local")
    lines.append(line)
print("open", flush=True)
closed = 0
for line in lines:
    try:
        closed += line.recv(1) == b""
    except ConnectionError:
        closed += 1
print("closed", closed, flush=True)
"""
IDLE_SOCKETS = 3
"""One to listen, and a pair by which asyncio wakes itself."""
QUICK = "from rarefish.labeling import connections\nconnections.{} = {}"


@contextmanager
def flood(port: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """So many half-open connections from another process, held until the server closes them."""
    command = [sys.executable, "-c", FLOOD, str(port), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_half_open_connections_beyond_the_file_limit_stop_nobody(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=40, picks=40)
    log = tmp_path / "log"
    quick = QUICK.format("HEAD_S", 4.0)
    with running(store.folder, files=1024, log=log, before=quick) as server, flood(server.client.port, 500) as first:
        assert said(first) == "open"
        if int(Path("/proc/sys/net/core/somaxconn").read_text()) >= 1500:  # the next 1,000 come all at once
            server.process.send_signal(SIGSTOP)
        with flood(server.client.port, 500) as second, flood(server.client.port, 500) as third:
            for process in (second, third):
                assert said(process) == "open"
            server.process.send_signal(SIGCONT)
            for number, task in enumerate(take_all(server)):
                given = {"image": task["image"], "who": "Ann", "answer": "none", "ticket": f"ticket-{number:04d}"}
                assert server.client.post("/api/answer", given).status == 200
                assert server.client.get(f"/image/{task['image']}").status == 200
                server.client.close()  # each answer needs a connection of its own
            assert len(votes(store)) == 40
            assert open_files(server) < 1024
            for process in (first, second, third):
                assert said(process) == "closed 500", "the server has ended them"
        assert server.client.get("/api/work").status == 200
    assert log.read_text() == "", "nothing went wrong"


def take_all(server: Running) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    while len(found) < 40:
        held = [task["image"] for task in found]
        found += server.client.post("/api/next", {"who": "Ann", "count": 20, "held": held}).json()["tasks"]
    return found


def open_files(server: Running, kind: str = "") -> int:
    """The server's open files, or those of a kind, such as sockets."""
    links = []
    for path in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(path.readlink()))
    return sum(link.startswith(kind) for link in links)


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_workspace(tmp_path_factory.mktemp("served"), pool=2, picks=2)


def head(server: Running) -> bytes:
    return f"GET /api/work HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.client.token}\r\n".encode()


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.client.port), timeout=60)


def is_closed(line: socket.socket) -> bool:
    """Whether the server ends the connection; hangs for at most a minute."""
    line.settimeout(60)
    with suppress(ConnectionError):
        while line.recv(65536):
            pass
    return True


def sends_in_vain(line: socket.socket, data: bytes) -> bool:
    try:
        line.sendall(data)
    except ConnectionError:
        return True
    return False


def test_a_head_that_does_not_end_is_not_waited_for(store: Store) -> None:
    with running(store.folder, before=QUICK.format("HEAD_S", 0.5)) as server:
        silent, drip = (connect(server) for _ in range(2))
        with silent, drip:
            until(lambda: sends_in_vain(drip, b"G"), "the end, though a byte came now and then")
            assert is_closed(silent)


def test_a_second_head_that_does_not_end_is_not_waited_for(store: Store) -> None:
    with running(store.folder, before=QUICK.format("HEAD_S", 0.5)) as server, connect(server) as line:
        line.sendall(head(server) + b"\r\n")
        assert b" 200 " in line.recv(65536)
        line.sendall(b"GET / HTTP/1.1\r\n")
        assert is_closed(line)


def test_a_body_may_take_longer_than_a_head(store: Store) -> None:
    with running(store.folder, before=QUICK.format("HEAD_S", 0.5)) as server, connect(server) as line:
        body = b'{"who": "Ann", "count": 0}'
        more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        line.sendall(head(server).replace(b"GET /api/work", b"POST /api/next") + more)
        time.sleep(1.0)
        line.sendall(body)
        assert b" 200 " in line.recv(65536)


def test_idle_connections_are_closed(store: Store) -> None:
    with running(store.folder, before=QUICK.format("KEEP_ALIVE_S", 0.3)) as server, connect(server) as line:
        line.sendall(head(server) + b"\r\n")
        assert is_closed(line)


def test_a_reply_that_nobody_reads_is_dropped(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    told = tmp_path / "told.json"
    told.write_text('{"much": "' + 30_000_000 * "x" + '"}')
    with running(store.folder, told=told, before=QUICK.format("REQUEST_S", 1.0)) as server, socket.socket() as line:
        assert server.client.get("/api/work", Connection="close").status == 200
        until(lambda: open_files(server, "socket") == IDLE_SOCKETS, "the server is up and idle")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.client.port))
        line.sendall(head(server).replace(b"work", b"summary") + b"\r\n")
        until(lambda: open_files(server, "socket") > IDLE_SOCKETS, "the connection")
        until(lambda: open_files(server, "socket") == IDLE_SOCKETS, "its end")


def test_where_there_are_too_many_the_one_that_waits_longest_is_closed(store: Store) -> None:
    with running(store.folder, before=QUICK.format("MOST_CONNECTIONS", 8)) as server:
        lines = [connect(server) for _ in range(8)]
        assert is_closed(lines[0])
        lines[-1].sendall(head(server) + b"\r\n")
        lines[-1].settimeout(60)
        assert b" 200 " in lines[-1].recv(65536), "the latest is served"
        for line in lines:
            line.close()


def test_a_small_file_limit_is_raised_or_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: limits.append(values))
    for given, room, raised in (
        ((1024, 1024), 824, [(1024, 1024)]),
        ((1024, 524_288), 1000, [(1200, 524_288)]),
        ((1024, resource.RLIM_INFINITY), 1000, [(1200, resource.RLIM_INFINITY)]),
        ((65536, 65536), 1000, []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1000, []),
        ((64, 64), 16, [(64, 64)]),
    ):
        limits.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, given=given: given)
        assert connections.make_room() == room and limits == raised


def test_the_log_says_once_what_comes_again_and_again() -> None:
    once = OncePerMessage()
    record = logging.makeLogRecord({"msg": "No connection: %s", "args": ("too many files",)})
    assert [once.filter(record) for _ in range(50)] == [True] + [False] * 49
    once.seen = {message: (0.0, missed) for message, (_, missed) in once.seen.items()}
    assert once.filter(record) and "too many files (49 more" in record.getMessage()
    unforeseen = logging.makeLogRecord({"msg": "Exception", "exc_info": (ValueError, ValueError(), None)})
    assert once.filter(unforeseen) and once.filter(unforeseen), "tracebacks are never left out"


def test_running_out_of_files_is_one_line(store: Store, tmp_path: Path) -> None:
    """The server believes that it has room for 1,000 connections; the system gives it 100 files."""
    log = tmp_path / "log"
    lie = QUICK.format("HEAD_S", 1.0) + "\nconnections.make_room = lambda: 1000"
    with running(store.folder, files=100, log=log, before=lie) as server, flood(server.client.port, 150) as process:
        assert said(process) == "open"
        assert said(process) == "closed 150"
        assert server.client.get("/api/work").status == 200
    text = log.read_text()
    assert "Cannot accept connections: Too many open files" in text
    assert "Traceback" not in text and len(text) < 2000
