"""The API over real HTTP: what it gives, and what it refuses."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM

import pytest
from PIL import Image

from rarefish.errors import ArgumentError
from rarefish.labeling.security import HEADERS, MOST_BODY_BYTES, is_known, name_of
from rarefish.labeling.server import check_host, identity, known_hosts, listen
from rarefish.labeling.workers import remembered
from rarefish.workspace.answers import settled, votes
from rarefish.workspace.store import Store
from tests.labeling.serving import Client, Running, running, start, stop
from tests.workspaces import make_workspace, replace_unnoticed

TICKET = "ticket-0000"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_workspace(tmp_path_factory.mktemp("served"), pool=12, picks=8)


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[Running]:
    with running(store.folder) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Client:
    return server.client


def test_work_next_answer_undo(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, picks=3)
    with running(store.folder) as server:
        client = server.client
        work = client.get("/api/work?who=Ann").json()
        assert work["classes"] == ["cat", "dog", "owl"] and work["person"] == "Ann"
        assert work["workspace"] == identity(store) and work["progress"]["open"] == 3
        first, second = client.post("/api/next", {"who": "Ann", "count": 2}).json()["tasks"]
        assert first["center_class"] == 0 and first["guess"] == 1 and first["chances"] == [[0, 0.7], [1, 0.3]]
        held = {"who": "Ann", "count": 5, "held": [first["image"], second["image"]]}
        more = client.post("/api/next", held).json()
        assert [task["rank"] for task in more["tasks"]] == [2] and sorted(more["kept"]) == sorted(held["held"])

        given = {"image": first["image"], "who": "Ann", "answer": "class", "class": 2, "ticket": TICKET, "seconds": 1.5}
        label = client.post("/api/answer", given).json()["label"]
        assert client.post("/api/answer", given).json()["label"] == label, "sent twice, one label"
        assert settled(store) == {first["image"]: 2}
        for _ in range(2):
            undone = client.post("/api/undo", {"who": "Ann", "ticket": "undo-00001"}).json()["task"]
            assert undone["image"] == first["image"] and settled(store) == {}
        assert client.post("/api/undo", {"who": "Bo", "ticket": "undo-00002"}).json()["task"] is None
        for who, ticket in (("Ann", TICKET), ("Bo", "undo-00001")):
            assert client.post("/api/undo", {"who": who, "ticket": ticket}).status == 422, "a ticket of something else"


def test_every_reply_names_the_workspace_and_the_ticket_it_confirms(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=2)
    with running(store.folder) as server:
        client = server.client
        (task,) = client.post("/api/next", {"who": "Ann", "count": 1}).json()["tasks"]
        given = {"image": task["image"], "who": "Ann", "answer": "none", "ticket": TICKET}
        undo = {"who": "Ann", "ticket": "undo-00001"}
        confirmed = [client.post("/api/answer", given).json(), client.post("/api/undo", undo).json()]
        assert [said["ticket"] for said in confirmed] == [TICKET, "undo-00001"]
        with store.reading() as connection:
            assert connection.execute("SELECT ticket FROM label").fetchone()["ticket"] == TICKET
        replies = [client.get(f"/api/{name}") for name in ("work", "progress", "disagreements", "summary")]
        replies += [client.post("/api/next", {"who": "Ann"}), client.post("/api/answer", given | {"answer": "?"})]
        replies += [client.get("/api/nothing"), client.get("/image/0"), client.post("/api/next", {"who": "x" * 70_000})]
        replies += [client.ask("GET", "/api/work", headers={"Authorization": ""})]
        assert {said["workspace"] for said in (*confirmed, *(reply.json() for reply in replies))} == {identity(store)}


def test_held_images_that_others_have_are_not_kept(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, picks=2)
    with running(store.folder) as server:
        (mine,) = server.client.post("/api/next", {"who": "Ann", "count": 1}).json()["tasks"]
        with store.writing() as connection:
            connection.execute("UPDATE lease SET until = 0")
        server.client.post("/api/next", {"who": "Bo", "count": 1})
        said = server.client.post("/api/next", {"who": "Ann", "count": 1, "held": [mine["image"]]}).json()
        assert said["kept"] == [] and [task["rank"] for task in said["tasks"]] == [1]
        assert server.client.post("/api/next", {"who": "Ann", "count": 0, "held": [10**12]}).json()["kept"] == []


def test_an_answer_under_way_does_not_lease_its_image_anew(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, picks=1)
    store.set(people_per_image=2)
    with running(store.folder) as server:
        (task,) = server.client.post("/api/next", {"who": "Ann", "count": 1}).json()["tasks"]
        given = {"image": task["image"], "who": "Ann", "answer": "none", "ticket": TICKET}
        server.client.post("/api/answer", given)
        server.client.post("/api/next", {"who": "Ann", "count": 1, "held": [task["image"]]})
        assert len(server.client.post("/api/next", {"who": "Bo", "count": 1}).json()["tasks"]) == 1


def test_disagreements_say_who_said_what(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, picks=2)
    store.set(people_per_image=2)
    with running(store.folder) as server:
        for who, what in (("Ann", 0), ("Bo", 1)):
            for task in server.client.post("/api/next", {"who": who, "count": 2}).json()["tasks"]:
                number = what if task["rank"] == 0 else 2
                given = {"image": task["image"], "who": who, "answer": "class", "class": number}
                server.client.post("/api/answer", given | {"ticket": f"ticket-{who}-{task['rank']}"})
        found = server.client.get("/api/disagreements").json()
        assert found["total"] == 1 and found["images"][0]["task"]["rank"] == 0
        assert found["images"][0]["said"] == [{"answer": 0, "people": ["Ann"]}, {"answer": 1, "people": ["Bo"]}]


def test_a_page_of_another_workspace_cannot_answer(client: Client, store: Store) -> None:
    given = {"image": 1, "who": "Ann", "answer": "none", "ticket": TICKET, "workspace": "another"}
    reply = client.post("/api/answer", given)
    assert reply.status == 409 and "another workspace" in reply.json()["error"] and votes(store) == {}


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
    assert [name_of(host) for host in ("A.b:80", "[::1]:80", "[::1]", "c")] == ["a.b", "[::1]", "[::1]", "c"]
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
    (image,) = [row["image"] for row in store._connection().execute("SELECT image FROM pick LIMIT 1")]
    given = {"image": image, "who": "Ann", "answer": "none", "ticket": TICKET}
    reply = client.post("/api/answer", given | wrong)
    assert reply.status == 422 and reply.json()["error"] and votes(store) == {}


def test_wrong_ways(client: Client) -> None:
    assert client.get("/api/answer").status == 405 and client.get("/api/answer").json()["error"]
    assert client.ask("DELETE", "/api/work").status == 405
    assert client.post("/", {}).status == 405
    assert client.get("/api/nothing").status == 404 and "nothing" in client.get("/api/nothing").json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/server.py",
        "/static//etc/passwd",
        "/image/../../etc/passwd",
        "/image/..%2f..%2fetc%2fpasswd",
        "/image/%2fetc%2fpasswd",
        "/image/1%00",
        "/image/-1",
        "/image/0x1",
        "/image/１",
        "/image/99999999",
        "/image/99999999999999999999999",
        "/image/1?size=abc",
        "/image/1?size=-5",
    ],
)
def test_nothing_but_images_by_number(client: Client, path: str) -> None:
    reply = client.ask("GET", path.replace("１", "%EF%BC%91"))
    assert reply.status == 404 and b"root:" not in reply.content and b"import" not in reply.content


def test_images_that_nobody_is_asked_about_stay_hidden(client: Client, store: Store) -> None:
    query = "SELECT id FROM image WHERE part = 'pool' AND id NOT IN (SELECT image FROM pick) LIMIT 1"
    (image,) = store._connection().execute(query).fetchone()
    assert client.get(f"/image/{image}").status == 404


def test_images_are_drawn_at_a_bounded_size(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    note = Image.Exif()
    note[0x010E] = "a secret place"
    Image.new("RGB", (3000, 1500), "red").save(tmp_path / "pool" / "a large one.jpg", exif=note)
    store = make_workspace(tmp_path, pool=2, picks=3)
    with running(store.folder) as server:
        tasks = server.client.post("/api/next", {"who": "Ann", "count": 3}).json()["tasks"]
        sizes = {}
        for task in tasks:
            for size in (1, 500, 99999):
                reply = server.client.get(f"/image/{task['image']}?size={size}")
                picture = Image.open(BytesIO(reply.content))
                sizes[(task["rank"], size)] = (picture.format, picture.size)
                assert b"secret" not in reply.content and reply.headers["cache-control"].startswith("private")
                again = server.client.get(
                    f"/image/{task['image']}?size={size}", **{"If-None-Match": reply.headers["etag"]}
                )
                assert again.status == 304 and again.content == b""
        assert {("PNG", (160, 80)), ("JPEG", (640, 320)), ("JPEG", (2560, 1280))} <= set(sizes.values())
        assert ("PNG", (24, 24)) in sizes.values()


def test_files_that_are_gone_changed_or_no_images(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=5, picks=5)
    files = sorted((tmp_path / "pool").iterdir())
    files[0].unlink()
    files[1].write_bytes(files[2].read_bytes())
    os.utime(files[3], (1, 1))
    files[4].unlink()
    os.mkfifo(files[4])
    with running(store.folder) as server:
        tasks = server.client.post("/api/next", {"who": "Ann", "count": 5}).json()["tasks"]
        replies = [server.client.get(f"/image/{task['image']}") for task in tasks]
        assert [reply.status for reply in replies] == [404, 409, 200, 200, 422], "touched only: the hash tells"
        assert "gone" in replies[0].json()["error"] and "changed" in replies[1].json()["error"]
        assert str(tmp_path) not in replies[0].content.decode()


def test_another_picture_of_the_same_size_and_time_is_not_shown(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    replace_unnoticed(tmp_path / "pool" / "image 00000.png")
    with running(store.folder) as server:
        tasks = server.client.post("/api/next", {"who": "Ann", "count": 2}).json()["tasks"]
        replies = [server.client.get(f"/image/{task['image']}") for task in tasks]
        assert [reply.status for reply in replies] == [409, 200]


def test_every_reply_has_its_headers(client: Client) -> None:
    replies = [client.get(path) for path in ("/", "/dashboard", "/static/page.js", "/api/work", "/nothing", "/image/0")]
    replies += [client.ask("GET", "/", headers={"Authorization": ""}), client.ask("GET", "/", headers={"Host": "x"})]
    for reply in replies:
        for name, value in HEADERS.items():
            assert reply.headers[name.lower()] == value
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert client.get("/api/work").headers["cache-control"] == "no-store"
    assert "server" not in client.get("/").headers


def test_pages_have_no_inline_script_or_style(client: Client) -> None:
    for path in ("/", "/dashboard"):
        text = client.get(path).content.decode()
        assert "style=" not in text and "<style" not in text and " on" + "click" not in text and "http" not in text
        assert text.count("<script") == text.count('<script type="module" src=')


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
    quick = "from rarefish.labeling import asks\nasks.PATIENCE_S = 0.5\n"
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


def test_a_value_is_remembered_for_a_while() -> None:
    calls = []
    look = remembered(lambda: calls.append(1) or len(calls), lasts_s=30.0)
    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert look() == 1 and remembered(lambda: 5, lasts_s=-1.0)() == 5


def test_no_torch() -> None:
    code = "import sys, rarefish.labeling.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
