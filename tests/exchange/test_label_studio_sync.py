"""Pushing picks to a Label Studio server and pulling annotations."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from rarefish.data.file_listing import list_pool
from rarefish.errors import ArgumentError, DataError
from rarefish.exchange import label_studio_sync as module
from rarefish.exchange.label_studio_sync import last_project, pull, push
from rarefish.workspace.answers import answer
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store
from tests.exchange.fake_label_studio import LEGACY, PERSONAL, Studio
from tests.exchange.labeled_workspaces import answers, asked, rows
from tests.workspaces import add_round, draw, make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=12, trusted=2, picks=6)


@pytest.mark.parametrize("token", [LEGACY, PERSONAL])
def test_picks_go_there_and_answers_come_back(studio: Studio, store: Store, token: str) -> None:
    done = push(store, studio.url + "/", token)
    assert (done.project, done.sent, done.already) == (1, 6, 0)
    assert [task["meta"]["rarefish"]["image"] for task in studio.tasks] == asked(store)
    first = Path(store.settings()["pool_root"]) / "image 00000.png"
    assert studio.uploads[0] == ("00000007.png", first.read_bytes())
    assert studio.tasks[0]["data"]["image"] == "/data/upload/1/abc-00000007.png"
    studio.annotate(["cat", "dog", "owl", "(unsure)", "(none of these)", ""])
    got = pull(store, studio.url, token, 1, "me")
    assert (got.count, got.unknown, got.conflicts) == (6, (), ())
    kinds = [("class", 0), ("class", 1), ("class", 2), ("unsure", None), ("none", None)]
    assert answers(store) == {(i, "ann@example.org", *k) for i, k in zip(asked(store), kinds, strict=False)}
    before = rows(store)
    assert pull(store, studio.url, token, 1, "me").already == 6 and rows(store) == before


def test_a_change_of_mind_there_is_a_new_answer(studio: Studio, store: Store) -> None:
    push(store, studio.url, LEGACY)
    for choice, when in (("cat", "01"), ("dog", "02"), ("cat", "03")):
        studio.annotate([choice])
        studio.tasks[0]["annotations"][0]["updated_at"] = f"2026-03-{when}T00:00:00Z"
        assert pull(store, studio.url, LEGACY, 1, "me").count == 1
        assert {(kind, number) for _, _, kind, number in answers(store)} == {("class", ["cat", "dog"].index(choice))}


def test_only_what_is_open_and_not_there_is_sent(studio: Studio, store: Store) -> None:
    answer(store, asked(store)[0], "ann", "class", 1, "done")
    assert push(store, studio.url, LEGACY).sent == 5
    add_round(store, 2)
    done = push(store, studio.url, LEGACY, 1)
    assert (done.sent, done.already, len(studio.tasks), len(studio.projects)) == (2, 5, 7, 1)


def test_a_push_that_broke_down_is_gone_on_with(studio: Studio, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    studio.fails_after = 4
    with pytest.raises(DataError, match=r"500, out of order. 4 of 6 images are in project 1. Push again"):
        push(store, studio.url, LEGACY)
    studio.fails_after = None
    assert push(store, studio.url, LEGACY, last_project(store, studio.url)).sent == 2 and len(studio.projects) == 1
    assert [task["meta"]["rarefish"]["image"] for task in studio.tasks] == asked(store)


def test_a_project_is_remembered_for_its_server_only(studio: Studio, store: Store) -> None:
    push(store, studio.url + "/", LEGACY)
    port = studio.server_address[1]
    same = [studio.url, f"{studio.url}/", f"HTTP://127.0.0.1:{port}"]
    assert [last_project(store, url) for url in same] == [1, 1, 1]
    assert [last_project(store, url) for url in (f"http://127.0.0.1:{port}/studio", "http://example.org")] == [None] * 2


def test_a_file_that_changed_is_not_sent(studio: Studio, store: Store) -> None:
    draw(Path(store.settings()["pool_root"]) / "image 00002.png", 0, 555)
    done = push(store, studio.url, LEGACY)
    assert (done.sent, len(done.left_out)) == (5, 1) and "image 00002.png has changed since" in done.left_out[0]
    assert asked(store)[2] not in [task["meta"]["rarefish"]["image"] for task in studio.tasks]


def test_what_a_browser_cannot_show_is_sent_as_png(studio: Studio, tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=1, trusted=1)
    Image.new("RGB", (5, 4), "red").save(os.path.join(os.fsencode(tmp_path / "pool"), b"\xff\n.tiff"), "TIFF")
    index(store, "pool", *list_pool(tmp_path / "pool"), jobs=1, shown=False)
    add_round(store, 2)
    push(store, studio.url, LEGACY)
    name, data = studio.uploads[1]
    assert name.endswith(".png") and Image.open(BytesIO(data)).size == (5, 4)


def test_a_project_of_another_kind_is_refused(studio: Studio, store: Store) -> None:
    studio.projects.append({"label_config": '<Choice value="cat"/><Choice value="dog"/>'})
    with pytest.raises(ArgumentError, match="no choices named 'class' with owl, .none of these., .unsure."):
        push(store, studio.url, LEGACY, 1)
    assert studio.uploads == []


def test_nothing_to_ask_is_said(studio: Studio, store: Store) -> None:
    for image in asked(store):
        answer(store, image, "ann", "class", 1, str(image))
    with pytest.raises(DataError, match="has been answered"):
        push(store, studio.url, LEGACY)
