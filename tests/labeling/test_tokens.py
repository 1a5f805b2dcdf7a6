"""Tokens, sessions and guesses: what opens the server, and what does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError
from rarefish.labeling import tokens
from rarefish.labeling.server import PORT_SETTING, serve
from rarefish.labeling.tokens import WrongTokens, check_token, make_keys
from rarefish.workspace.answers import votes
from rarefish.workspace.store import Store
from tests import forked_processes
from tests.labeling.serving import TOKEN, Client, Running, running
from tests.workspaces import make_workspace

LONG = "a-token-that-is-long-enough"


def enter(server: Running, token: str) -> str:
    """The session cookie that a browser gets for this token."""
    reply = server.client.ask("GET", f"/?token={token}", headers={"Authorization": ""})
    assert reply.status == 303
    return reply.headers["set-cookie"].partition(";")[0]


def status(client: Client, cookie: str) -> int:
    return client.ask("GET", "/api/work", headers={"Authorization": "", "Cookie": cookie}).status


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_workspace(tmp_path_factory.mktemp("served"), pool=2, picks=2)


def test_the_cookie_is_not_the_token_and_opens_only_this_server(store: Store, tmp_path: Path) -> None:
    other = make_workspace(tmp_path, pool=2, picks=2)
    with running(store.folder) as server, running(other.folder) as elsewhere, running(store.folder) as again:
        cookie = enter(server, TOKEN)
        name, _, value = cookie.partition("=")
        assert TOKEN not in cookie and status(server.client, cookie) == 200
        for wrong in (elsewhere, again):  # another workspace, and another port; both have the same token
            assert status(wrong.client, f"rarefish-{wrong.client.port}={value}") == 401
        until, who, signature = value.split(".")
        for forged in (
            TOKEN,
            f"{int(until) + 1}.{who}.{signature}",
            f"{until}.QQ.{signature}",
            f"{until}.{who}.",
            "..",
            "é",
        ):
            assert status(server.client, f"{name}={forged}") == 401


def test_a_session_goes_on_after_a_restart_with_the_same_token_only(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    with running(store.folder, token=LONG) as server:
        cookie = enter(server, LONG)
    with running(store.folder, token=LONG) as server:
        assert store.settings()[PORT_SETTING] == server.client.port
        assert status(server.client, cookie) == 200
    with running(store.folder, token=LONG + "-other") as server:
        assert status(server.client, cookie) == 401


def test_a_personal_link_proves_who_answers(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, picks=2)
    with running(store.folder, people=["ann", "bob"]) as server:
        assert list(server.links) == ["ann", "bob"] and TOKEN not in "".join(server.links.values())
        ann, bob = (Client(server.client.port, link.partition("token=")[2]) for link in server.links.values())
        assert ann.get("/api/work?who=bob").json()["person"] == "ann", "the link says who it is"
        assert ann.get("/api/work").json()["is_proven"]
        (task,) = ann.post("/api/next", {"who": "ann", "count": 1}).json()["tasks"]
        given = {"image": task["image"], "who": "ann", "answer": "none", "ticket": "ticket-0000"}
        for path, body in (("/api/answer", given), ("/api/next", {"who": "ann"}), ("/api/undo", given)):
            reply = bob.post(path, body)
            assert reply.status == 403
            assert reply.json()["error"] == "This link belongs to bob and cannot be used to label as ann."
        assert votes(store) == {} and ann.post("/api/answer", given).status == 200
        session = enter(server, bob.token)
        headers = {"Authorization": "", "Cookie": session, "Content-Type": "application/json"}
        assert server.client.ask("POST", "/api/undo", json.dumps(given).encode(), headers).status == 403
        assert server.client.ask("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"}).status == 401
        for client in (ann, bob):
            client.close()


def test_with_a_shared_link_people_say_who_they_are(store: Store) -> None:
    with running(store.folder) as server:
        assert list(server.links) == [tokens.ANYBODY]
        for who in ("ann", "bob"):
            assert server.client.get(f"/api/work?who={who}").json()["person"] == who
            assert server.client.post("/api/next", {"who": who, "count": 0}).status == 200
        assert not server.client.get("/api/work").json()["is_proven"]


@pytest.mark.parametrize("people", [["ann", ""], ["x" * 65], ["a\nb"]])
def test_links_need_names(store: Store, people: list[str]) -> None:
    with pytest.raises(ArgumentError, match="1 to 64 printable characters"):
        serve(store, people=people)


def test_the_command_prints_a_link_per_person(store: Store) -> None:
    command = [sys.executable, "-m", "rarefish", "label", str(store.folder), "--person", "ann", "--person", "bob"]
    process = forked_processes.Popen(command, stdout=subprocess.PIPE, text=True, has_torch=False)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(2)]
    process.terminate()
    process.communicate(timeout=60)
    assert [name for name, _ in lines] == ["ann:", "bob:"] and len({link for _, link in lines}) == 2
    command.append("--open")
    done = forked_processes.run(command, capture_output=True, text=True, check=False, timeout=120, has_torch=False)
    assert done.returncode == 1 and "--open opens a single link, but there are 2" in done.stderr


def test_sessions_end() -> None:
    keys = make_keys(LONG, "workspace")
    session = keys.sign("", 8000, now=1000.0)
    assert keys.read(session, 8000, now=1000.0 + tokens.SESSION_S - 1) == ""
    assert keys.read(session, 8000, now=1000.0 + tokens.SESSION_S) is None
    assert keys.read(session, 8001, now=1000.0) is None
    assert make_keys(LONG, "another").read(session, 8000, now=1000.0) is None
    assert make_keys(LONG, "workspace", ["ann"]).read(session, 8000, now=1000.0) is None, "people have own links now"


def test_everyone_has_a_token_of_their_own() -> None:
    keys = make_keys(LONG, "workspace", ["ann", "bob"])
    assert {keys.person_of(token) for token in keys.tokens.values()} == {"ann", "bob"}
    assert len(set(keys.tokens.values())) == 2 and min(map(len, keys.tokens.values())) >= 32
    assert keys.person_of(LONG) is None and keys.person_of("") is None, "the token they are made from opens nothing"
    assert make_keys(LONG, "workspace", ["ann"]).tokens["ann"] == keys.tokens["ann"], "the same after a restart"
    assert make_keys(LONG, "another", ["ann"]).tokens["ann"] != keys.tokens["ann"]
    assert make_keys(None, "workspace", ["ann"]).tokens["ann"] != keys.tokens["ann"]
    assert LONG not in repr(make_keys(LONG, "workspace"))


@pytest.mark.parametrize(
    "token", ["", "short", "fifteen-letters", "a token with blanks in it", "ein-schlüssel-für-alle", "x" * 20 + "&"]
)
def test_tokens_that_are_short_or_need_quoting_are_refused_at_the_start(token: str, store: Store) -> None:
    with pytest.raises(ArgumentError, match=f"at least 16 characters.* has {len(token)}"):
        serve(store, token=token)


def test_good_tokens() -> None:
    assert check_token("A-Z_a.z~01234567") == "A-Z_a.z~01234567"


@pytest.mark.parametrize("given", ["file", "variable"])
def test_a_token_comes_from_a_file_or_a_variable(
    store: Store, tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = []
    if given == "file":
        (tmp_path / "token").write_text(LONG + "\n")
        more = ["--token-file", str(tmp_path / "token")]
    else:
        monkeypatch.setenv("RAREFISH_TOKEN", LONG)
    command = [sys.executable, "-m", "rarefish", "label", str(store.folder), *more]
    process = forked_processes.Popen(command, stdout=subprocess.PIPE, text=True, has_torch=False)
    assert process.stdout is not None
    assert process.stdout.readline().strip().endswith(f"/?token={LONG}")
    process.terminate()
    process.communicate(timeout=60)


def test_wrong_tokens_are_slowed_down_and_sessions_go_on(store: Store) -> None:
    with running(store.folder) as server:
        cookie = enter(server, TOKEN)
        statuses = []
        for number in range(2 * tokens.WRONG_AT_ONCE):
            headers = {"Authorization": f"Bearer wrong-{number}"}
            statuses.append(server.client.ask("GET", "/api/work", headers=headers))
        assert statuses[0].status == 401 and statuses[-1].status == 429
        assert statuses[-1].headers["retry-after"] == "1" and "Too many wrong tokens" in statuses[-1].json()["error"]
        assert server.client.ask("GET", "/?token=wrong", headers={"Authorization": ""}).status == 429
        assert status(server.client, cookie) == 200, "who is in already is not held up"


def test_wrong_tokens_are_counted_per_address_and_forgotten() -> None:
    moment = [0.0]
    wrong = WrongTokens(clock=lambda: moment[0])
    for _ in range(tokens.WRONG_AT_ONCE):
        assert not wrong.are_too_many("10.0.0.1")
        wrong.add("10.0.0.1")
    assert wrong.are_too_many("10.0.0.1") and not wrong.are_too_many("10.0.0.2")
    moment[0] += 1.5 * tokens.WRONG_EVERY_S
    assert not wrong.are_too_many("10.0.0.1")
    for _ in range(2):
        wrong.add("10.0.0.1")
    assert wrong.are_too_many("10.0.0.1"), "two more, not thirty"
    for number in range(tokens.WRONG_AT_ONCE):
        wrong.add(f"2001:db8::{number}")
    assert wrong.are_too_many("2001:db8::ffff"), "a machine has a whole network of them"
    for number in range(3 * tokens.MOST_ADDRESSES):
        wrong.add(f"10.1.{number // 250}.{number % 250}")
    assert len(wrong.counts) <= tokens.MOST_ADDRESSES
