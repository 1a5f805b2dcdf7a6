"""The labeling server as a process: its address and port, signals, tokens, and that it never imports torch."""

import socket
import subprocess
import sys
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from rarefish.errors import ArgumentError
from rarefish.labeling.server import check_host, listen
from tests.labeling.serving import TICKET, running, start, stop
from tests.workspaces import make_workspace


def test_other_machines_only_where_allowed() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "lab.example"):
        with pytest.raises(ArgumentError, match="other machines"):
            check_host(host, allow_remote=False)
        check_host(host, allow_remote=True)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        check_host(host, allow_remote=False)


def test_the_last_port_is_taken_again(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2)
    first = start(store.folder)
    second = start(store.folder)
    assert first.client.port != second.client.port, "the last one is in use"
    stop(first)
    stop(second)
    third = start(store.folder)
    assert third.client.port == second.client.port
    with pytest.raises(ArgumentError, match=f"port {third.client.port}"):
        listen(store, "127.0.0.1", third.client.port)
    stop(third)


@pytest.mark.parametrize(("signal", "status"), [(SIGINT, 1), (SIGTERM, 143), (SIGHUP, 143)])
def test_signals_end_the_server_in_order(tmp_path: Path, signal: int, status: int) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    log = tmp_path / "log"
    quick = "from rarefish.labeling import request_fields\nrequest_fields.PATIENCE_S = 0.5\n"
    at_exit = "import atexit\natexit.register(lambda: print('ended', flush=True))\n"
    server = start(store.folder, log=log, before=quick + at_exit)
    given = {"image": 1, "who": "Ann", "answer": "skip", "ticket": TICKET}
    server.client.post("/api/next", given)
    with socket.create_connection(("127.0.0.1", server.client.port)) as line:
        head = f"POST /api/next HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.client.token}\r\n"
        line.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode())
        server.client.close()
        server.process.send_signal(signal)
        assert server.process.stdout is not None
        assert server.process.stdout.read().strip() == "ended", "what is to be done at the end is done"
    assert server.process.wait(60) in (status, -signal) and (signal == SIGINT or server.process.returncode == status)
    server.process.stdout.close()
    assert signal == SIGINT or "Traceback" not in log.read_text()


def test_tokens_are_random(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2)
    tokens = set()
    for _ in range(2):
        with running(store.folder, token="") as server:
            tokens.add(server.client.token)
            assert server.client.get("/api/work").status == 200
    assert len(tokens) == 2 and min(map(len, tokens)) >= 32


def test_no_torch() -> None:
    code = "import sys, rarefish.labeling.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0
