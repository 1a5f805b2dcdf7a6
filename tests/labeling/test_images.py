"""Images over HTTP: which are shown, at which size, and what happens where the file has changed."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from rarefish.workspace.store import Store
from tests.labeling.serving import Client, running
from tests.workspaces import make_workspace, replace_unnoticed


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
    (image,) = store._connections.own().execute(query).fetchone()
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
        assert "missing" in replies[0].json()["error"] and "changed" in replies[1].json()["error"]
        assert str(tmp_path) not in replies[0].content.decode()


def test_another_picture_of_the_same_size_and_time_is_not_shown(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    replace_unnoticed(tmp_path / "pool" / "image 00000.png")
    with running(store.folder) as server:
        tasks = server.client.post("/api/next", {"who": "Ann", "count": 2}).json()["tasks"]
        replies = [server.client.get(f"/image/{task['image']}") for task in tasks]
        assert [reply.status for reply in replies] == [409, 200]
