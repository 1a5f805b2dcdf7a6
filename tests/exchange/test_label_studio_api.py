"""Requests to a Label Studio server: tokens and errors."""

import socket
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError
from rarefish.exchange.label_studio_api import Server, call
from rarefish.workspace.store import Store
from tests.exchange.fake_label_studio import LEGACY, PERSONAL, Studio
from tests.exchange.labeled_workspaces import rows
from tests.workspaces import make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=12, trusted=2, picks=6)


def test_an_access_token_that_ran_out_is_renewed(studio: Studio) -> None:
    server = Server(studio.url, PERSONAL)
    assert call(server, "/api/users/")
    studio.access.append("another")
    assert call(server, "/api/users/") and len(studio.access) == 3


def test_mistakes_are_told_apart(studio: Studio, store: Store) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    cases = [
        (studio.url, "wrong", "rejects the legacy token .401, Invalid token"),
        (studio.url, "a.b.c", "rejects the personal token .401, Token is invalid"),
        (studio.url + "/nowhere/users", LEGACY, "does not exist .404"),
        (studio.url + "/moved", LEGACY, "redirects to http://example.org/"),
        (nobody, LEGACY, "cannot be reached"),
        ("localhost:8080", LEGACY, "not the URL of a server"),
        ("file:///etc/passwd", LEGACY, "not the URL of a server"),
        (studio.url, "", "token is empty"),
        (studio.url, "a\r\nX: y", "token is empty or not printable"),
    ]
    for url, token, said in cases:
        with pytest.raises(ArgumentError, match=said):
            call(Server(url, token), "/api/nowhere/" if "nowhere" in url else "/api/users/")
    assert rows(store) == []


def test_a_server_that_hangs_is_given_up(store: Store) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        server = Server(f"http://127.0.0.1:{deaf.getsockname()[1]}", LEGACY, timeout_s=0.2)
        with pytest.raises(ArgumentError, match="did not respond within 0.2 s|cannot be reached: timed out"):
            call(server, "/api/users/")


def test_a_token_is_never_shown() -> None:
    assert LEGACY not in repr(Server("http://localhost:1", LEGACY))
