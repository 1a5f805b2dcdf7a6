"""Fields of a request that have the wrong kind or size are refused with one sentence."""

import socket
from contextlib import suppress

import pytest

from rarefish.workspace.answers import votes
from rarefish.workspace.store import Store
from tests.labeling.serving import TICKET, Client


def test_a_giant_body_in_chunks_is_not_read_to_its_end(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as line:
        head = f"POST /api/next HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client.token}\r\n"
        line.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        sent = 0
        with suppress(OSError):
            for _ in range(20_000):  # 330 MB, if anybody read them
                line.sendall(chunk)
                sent += len(chunk)
        assert sent < 100 << 20
        with suppress(ConnectionError):  # closed while we were still sending: nothing came back, nothing was kept
            assert b" 413 " in line.makefile("rb").readline()
    assert client.get("/api/progress").status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 5000, 400),
        (b'{"who": NaN}', 400),
        (b"\xff\xfe", 400),
        (b"[]", 422),
        (b'{"who": 3}', 422),
        (b'{"who": ""}', 422),
        (b'{"who": "a\\u0000b"}', 422),
        (b'{"who": "\\ud800"}', 422),
        (b'{"who": "' + b"a" * 65 + b'"}', 422),
        (b'{"who": "Ann", "count": 1000}', 422),
        (b'{"who": "Ann", "count": true}', 422),
        (b'{"who": "Ann", "count": ' + b"9" * 5000 + b"}", 400),
        (b'{"who": "Ann", "held": 3}', 422),
        (b'{"who": "Ann", "held": [-1]}', 422),
        (b'{"who": "Ann", "held": [99999999999999999999]}', 422),
    ],
)
def test_bad_bodies(client: Client, body: bytes, status: int) -> None:
    reply = client.ask("POST", "/api/next", body, {"Content-Type": "application/json"})
    assert reply.status == status and reply.json()["error"].endswith(".")


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": 10**9},
        {"image": "1"},
        {"image": 2**63},
        {"answer": "undo"},
        {"answer": "class"},
        {"class": 1},
        {"answer": "class", "class": 3},
        {"answer": "class", "class": True},
        {"ticket": "x"},
        {"ticket": "a b c d e f g h"},
        {"seconds": "3"},
        {"seconds": -1},
    ],
)
def test_bad_answers(client: Client, store: Store, wrong: dict[str, object]) -> None:
    (image,) = [row["image"] for row in store._connections.own().execute("SELECT image FROM pick LIMIT 1")]
    given = {"image": image, "who": "Ann", "answer": "none", "ticket": TICKET}
    reply = client.post("/api/answer", given | wrong)
    assert reply.status == 422 and reply.json()["error"] and votes(store) == {}
