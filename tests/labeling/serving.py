"""A real labeling server in a process of its own, and a small HTTP client for it."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGTERM
from typing import Any
from urllib.parse import urlsplit

from tests import forked_processes

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))\n"
CODE = """
import json, sys
from pathlib import Path
from signal import SIGTERM
from rarefish.labeling.server import serve
from rarefish.workspace.store import open_store
folder, port, token, told, *people = sys.argv[1:]
given = {"summary": lambda store: json.loads(Path(told).read_text())} if told else {}
store, tell = open_store(Path(folder)), lambda links: print(json.dumps(links), flush=True)
serve(store, port=int(port), token=token or None, people=people, on_ready=tell, **given)
assert "torch" not in sys.modules
"""
TOKEN = "a-token-for-tests"
TICKET = "ticket-0000"


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Client:
    """Requests as a browser of ours would send them; threads have connections of their own."""

    port: int
    token: str
    _own: threading.local = field(default_factory=threading.local, repr=False)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = getattr(self._own, "connection", None) or HTTPConnection("127.0.0.1", self.port, timeout=600)
        self._own.connection = None
        given = {"Authorization": f"Bearer {self.token}"} | dict(headers or {})
        try:
            connection.request(method, path, body, {name: value for name, value in given.items() if value})
            reply = connection.getresponse()
            found = Reply(reply.status, dict(reply.headers.items()), reply.read())
        except BaseException:
            connection.close()
            raise
        if not reply.will_close:
            self._own.connection = connection
        else:
            connection.close()
        return found

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.ask("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"} | headers)

    def close(self) -> None:
        if getattr(self._own, "connection", None):
            self._own.connection.close()


@dataclass
class Running:
    """A server that runs; `client` has the token of its first link, `links` has all of them by person."""

    url: str
    client: Client
    process: subprocess.Popen[str]
    links: dict[str, str]

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.client.port}"


def start(
    folder: Path,
    port: int = 0,
    token: str = TOKEN,
    told: Path | None = None,
    files: int = 0,
    log: Path | None = None,
    before: str = "",
    people: Sequence[str] = (),
) -> Running:
    """`told` is a JSON file with what the dashboard shows, `files` the server's limit of open files.

    What the server writes to stderr goes to `log`; `before` is code that runs before it starts.
    """
    code = (LIMIT.format(files) if files else "") + before + CODE
    command = [sys.executable, "-W", "error", "-c", code, str(folder), str(port), token, str(told or ""), *people]
    with open(log, "w") if log else nullcontext() as errors:
        process = forked_processes.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, has_torch=False)
    assert process.stdout is not None
    links = json.loads(process.stdout.readline() or "{}")
    assert links, "the server did not start"
    (url, *_) = links.values()
    parts = urlsplit(url)
    return Running(url, Client(parts.port or 0, parts.query.removeprefix("token=")), process, links)


def stop(server: Running, signal: int = SIGTERM) -> None:
    server.process.send_signal(signal)
    server.process.wait(600)
    assert server.process.stdout is not None
    server.process.stdout.close()
    server.client.close()


@contextmanager
def running(
    folder: Path,
    port: int = 0,
    token: str = TOKEN,
    told: Path | None = None,
    files: int = 0,
    log: Path | None = None,
    before: str = "",
    people: Sequence[str] = (),
) -> Iterator[Running]:
    server = start(folder, port, token, told, files, log, before, people)
    try:
        yield server
    finally:
        stop(server)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]
