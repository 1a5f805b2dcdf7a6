"""Requests that the labeling server refuses: wrong tokens, hosts, origins, and bodies of another kind or size."""

import json
import socket

import pytest

from rarefish.labeling.security import HEADERS, MOST_BODY_BYTES, host_name, is_known
from rarefish.labeling.server import known_hosts
from rarefish.workspace.answers import votes
from rarefish.workspace.store import Store
from tests.labeling.serving import TICKET, Client, Running


def test_a_token_is_needed_everywhere(client: Client) -> None:
    for path in ("/", "/dashboard", "/static/page.js", "/api/work", "/image/1", "/nothing"):
        for wrong in ("", "Bearer wrong", "Bearer é", "Basic xyz"):
            reply = client.ask("GET", path, headers={"Authorization": wrong})
            assert reply.status == 401 and b"rarefish label" in reply.content
    assert client.ask("POST", "/api/next", b"{}", {"Authorization": ""}).status == 401
    assert client.ask("GET", "/?token=wrong", headers={"Authorization": ""}).status == 401


def test_the_token_in_the_address_becomes_a_cookie(client: Client, server: Running) -> None:
    reply = client.ask("GET", server.url.removeprefix(server.site), headers={"Authorization": ""})
    cookie = reply.headers["set-cookie"]
    assert reply.status == 303 and reply.headers["location"] == "/"
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    only = {"Authorization": "", "Cookie": cookie.partition(";")[0]}
    assert client.ask("GET", "/", headers=only).status == 200
    assert client.ask("GET", "/", headers={"Authorization": "", "Sec-Fetch-Site": "cross-site"}).status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "", "[::2]", "1.2.3.4"]
)
def test_other_hosts_are_refused(client: Client, host: str) -> None:
    with socket.create_connection(("127.0.0.1", client.port)) as line:
        ask = f"GET /api/work HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {client.token}\r\n"
        line.sendall(f"{ask}Connection: close\r\n\r\n".encode())
        assert b" 403 " in line.makefile("rb").readline()


def test_hosts() -> None:
    assert [host_name(host) for host in ("A.b:80", "[::1]:80", "[::1]", "c")] == ["a.b", "[::1]", "[::1]", "c"]
    everywhere = frozenset({"0.0.0.0"})
    assert is_known("10.1.2.3", everywhere) and is_known("[fe80::1]", everywhere)
    assert not is_known("evil.example", everywhere)
    assert "lab.example" in known_hosts("0.0.0.0", ["lab.example"]) and socket.gethostname() in known_hosts("::")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_posts_from_other_sites_are_refused(client: Client, headers: dict[str, str], store: Store) -> None:
    given = {"image": 1, "who": "Ann", "answer": "none", "ticket": TICKET}
    reply = client.ask(
        "POST", "/api/answer", json.dumps(given).encode(), {"Content-Type": "application/json"} | headers
    )
    assert reply.status == 403 and "another site" in reply.json()["error"] and votes(store) == {}


def test_own_posts_pass(client: Client, server: Running) -> None:
    headers = {
        "Origin": server.site,
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json; charset=utf-8",
    }
    assert client.ask("POST", "/api/next", b'{"who": "Ann", "count": 0}', headers).status == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_only_json_is_read(client: Client, kind: str) -> None:
    assert client.ask("POST", "/api/next", b'{"who": "Ann"}', {"Content-Type": kind}).status == 415


def test_a_giant_body_is_refused_by_its_length(client: Client) -> None:
    reply = client.post("/api/next", {"who": "x" * MOST_BODY_BYTES})
    assert reply.status == 413 and "65,536" in reply.json()["error"]


def test_every_reply_has_its_headers(client: Client) -> None:
    replies = [client.get(path) for path in ("/", "/dashboard", "/static/page.js", "/api/work", "/nothing", "/image/0")]
    replies += [client.ask("GET", "/", headers={"Authorization": ""}), client.ask("GET", "/", headers={"Host": "x"})]
    for reply in replies:
        for name, value in HEADERS.items():
            assert reply.headers[name.lower()] == value
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert client.get("/api/work").headers["cache-control"] == "no-store"
    assert "server" not in client.get("/").headers
