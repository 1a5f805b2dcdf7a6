"""The API over real HTTP: tasks, answers, undo, disagreements, and how it names its workspace."""

from pathlib import Path

from rarefish.workspace.answers import settled, votes
from rarefish.workspace.store import Store
from tests.labeling.serving import TICKET, Client, running
from tests.workspaces import make_workspace


def test_work_next_answer_undo(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, picks=3)
    with running(store.folder) as server:
        client = server.client
        work = client.get("/api/work?who=Ann").json()
        assert work["classes"] == ["cat", "dog", "owl"] and work["person"] == "Ann"
        assert work["workspace"] == store.identity() and work["progress"]["open"] == 3
        first, second = client.post("/api/next", {"who": "Ann", "count": 2}).json()["tasks"]
        assert first["center_class"] == 0 and first["guess"] == 1 and first["probabilities"] == [[0, 0.7], [1, 0.3]]
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
        assert {said["workspace"] for said in (*confirmed, *(reply.json() for reply in replies))} == {store.identity()}


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


def test_wrong_ways(client: Client) -> None:
    assert client.get("/api/answer").status == 405 and client.get("/api/answer").json()["error"]
    assert client.ask("DELETE", "/api/work").status == 405
    assert client.post("/", {}).status == 405
    assert client.get("/api/nothing").status == 404 and "nothing" in client.get("/api/nothing").json()["error"]


def test_pages_have_no_inline_script_or_style(client: Client) -> None:
    for path in ("/", "/dashboard"):
        text = client.get(path).content.decode()
        assert "style=" not in text and "<style" not in text and " on" + "click" not in text and "http" not in text
        assert text.count("<script") == text.count('<script type="module" src=')
