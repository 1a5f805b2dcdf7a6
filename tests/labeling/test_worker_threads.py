"""Many people and many requests at once: every image is labeled as often as asked, and the server stays up."""

import threading
import time
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import pytest
from benchmarks.page import NEXT, NEXT_LATE, measure

from rarefish.labeling.worker_threads import cached
from rarefish.workspace.answers import progress, votes
from rarefish.workspace.store import Store
from tests.labeling.serving import Client, Running, running
from tests.workspaces import make_workspace


def label_all(client: Client, who: str, number: int) -> None:
    """One annotator, as the page works: some images ahead, answers sent at once, now and then sent twice."""
    ahead: list[int] = []
    while True:
        said = client.post("/api/next", {"who": who, "count": 6, "held": ahead}).json()
        ahead += [task["image"] for task in said["tasks"]]
        if not ahead:
            client.close()
            return  # whoever has the last ones answers them
        for image in ahead[:4]:
            given = {"image": image, "who": who, "answer": "class", "class": number % 3, "ticket": f"{who}-{image}"}
            for _ in range(1 + (image % 5 == 0)):
                assert client.post("/api/answer", given).status == 200
        ahead = ahead[4:]


@pytest.mark.slow
@pytest.mark.parametrize("people_per_image", [1, 2])
def test_four_annotators(tmp_path: Path, people_per_image: int) -> None:
    store = make_workspace(tmp_path, pool=500, picks=500)
    store.set(people_per_image=people_per_image)
    with running(store.folder) as server:
        people = [threading.Thread(target=label_all, args=(server.client, f"person-{n}", n)) for n in range(4)]
        for person in people:
            person.start()
        for person in people:
            person.join(1800)
        found = votes(store)
        assert len(found) == 500 and {said.total() for said in found.values()} == {people_per_image}
        with store.reading() as connection:
            (rows,) = connection.execute("SELECT count(*) FROM label").fetchone()
        assert rows == 500 * people_per_image and progress(store).open == 0
        assert len(progress(store).by_person) == 4, "everybody had a share"


@pytest.mark.slow
def test_a_flood(tmp_path: Path) -> None:
    """Thousands of requests as fast as 24 threads can: each is answered or turned away, and no label is lost."""
    store = make_workspace(tmp_path, pool=200, picks=200)
    with running(store.folder) as server:
        images = [image for _ in range(10) for image in take(server, 20)]
        server.client.close()
        statuses: Counter[int | str] = Counter()
        kept: list[int] = []
        threads = [threading.Thread(target=flood, args=(server, images[n::24], statuses, kept)) for n in range(24)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(1800)
        took = time.monotonic() - began
        assert sum(statuses.values()) >= 4000 and set(statuses) <= {200, 304, 401, 404, 413, 422, 503, "closed"}
        assert statuses["closed"] < 100
        print(f"{sum(statuses.values()) / took:.0f} requests a second, {dict(statuses)}")
        check_all_kept(store, kept)
        later = Client(server.client.port, server.client.token)
        assert later.get("/").status == 200
        later.close()


def take(server: Running, count: int) -> list[int]:
    said = server.client.post("/api/next", {"who": "Ann", "count": count, "held": []}).json()["tasks"]
    for task in said:
        given = {"image": task["image"], "who": "Ann", "answer": "skip", "ticket": f"skip-{task['image']:08d}"}
        server.client.post("/api/answer", given)
    return [task["image"] for task in said]


def flood(server: Running, images: list[int], statuses: Counter[int | str], kept: list[int]) -> None:
    client = Client(server.client.port, server.client.token)
    try:
        for image in images:
            given = {"image": image, "who": "Bo", "answer": "class", "class": image % 3, "ticket": f"flood-{image:08d}"}
            asks = [("POST", "/api/answer", given)] * 3 + [("GET", "/api/progress", None)] * 6
            asks += [("GET", f"/image/{image}", None)] * 2 + [
                ("GET", path, None) for path in ("/", "/static/page.js")
            ] * 3
            asks += [("GET", "/nothing", None), ("POST", "/api/next", {"who": "x" * 70_000}), ("POST", "/api/next", {})]
            for method, path, body in asks:
                try:
                    reply = client.post(path, body) if method == "POST" else client.get(path)
                except (OSError, HTTPException):
                    statuses["closed"] += 1
                    continue
                statuses[reply.status] += 1
                if body is given and reply.status == 200:
                    kept.append(image)
    finally:
        client.close()


def check_all_kept(store: Store, kept: list[int]) -> None:
    with store.reading() as connection:
        rows = connection.execute("SELECT image, class FROM label WHERE who = 'Bo'").fetchall()
    assert sorted(row["image"] for row in rows) == sorted(set(kept)), "what was answered for is there, once"
    assert all(row["class"] == row["image"] % 3 for row in rows)


def test_the_measurement_works(tmp_path: Path) -> None:
    found = measure(picks=50, answers=10, folder=tmp_path)
    assert [one["name"].split(",")[0] for one in found] == [NEXT, NEXT_LATE, "/api/answer", "/api/progress"]
    assert all(0 < one["value"] < 5000 and one["unit"] == "ms" and one["floor"] is None for one in found)


def test_a_value_is_remembered_for_a_while() -> None:
    calls = []
    look = cached(lambda: calls.append(1) or len(calls), lasts_s=30.0)
    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert look() == 1 and cached(lambda: 5, lasts_s=-1.0)() == 5
