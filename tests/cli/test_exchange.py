"""The commands of exchange as a person types them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rarefish.cli.exchange import FORMS
from rarefish.cli.main import cli
from rarefish.errors import ArgumentError, DataError
from rarefish.exchange import label_studio_sync as module
from rarefish.workspace.store import Store
from tests.exchange.fake_label_studio import LEGACY, Studio, running
from tests.exchange.labeled_workspaces import answers, make_labeled, rows
from tests.workspaces import draw, make_workspace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], env={"LABEL_STUDIO_TOKEN": LEGACY})


@pytest.fixture
def server() -> Iterator[Studio]:
    with running() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=12, trusted=2, picks=6)


def push(store: Store, server: Studio, *more: object) -> Result:
    return run("studio", "push", store.folder, "--url", server.url, *more)


def test_a_push_that_broke_down_makes_no_second_project(
    server: Studio, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    server.fails_after = 4
    broken = push(store, server)
    assert isinstance(broken.exception, DataError) and "in project 1. Push again" in str(broken.exception)
    server.fails_after = None
    assert "Images: 2 sent, 4 already there" in push(store, server).output
    assert len(server.projects) == 1 and len(server.tasks) == 6


def test_another_project_is_made_where_it_is_wanted(server: Studio, store: Store) -> None:
    assert "(project 1)" in push(store, server).output
    assert "Images: 0 sent, 6 already there" in push(store, server).output
    assert "(project 2)" in push(store, server, "--new").output and len(server.projects) == 2
    both = push(store, server, "--new", "--project", 1)
    assert isinstance(both.exception, ArgumentError) and "Give only one of them" in str(both.exception)


def test_a_project_is_not_looked_for_on_another_server(server: Studio, store: Store) -> None:
    push(store, server)
    with running() as other:
        pulled = run("studio", "pull", store.folder, "--url", other.url)
        assert isinstance(pulled.exception, ArgumentError) and "nothing has been pushed to" in str(pulled.exception)
        assert "Images: 6 sent" in push(store, other).output and len(other.projects) == 1
        other.annotate(["cat"])
        assert "Labels: 1 new" in run("studio", "pull", store.folder, "--url", other.url).output


def test_images_that_changed_are_named(server: Studio, store: Store, tmp_path: Path) -> None:
    draw(tmp_path / "a" / "pool" / "image 00003.png", 1, 555)
    said = "1 left out:\n  image 00003.png has changed since it was indexed."
    assert said in push(store, server).output
    out = ("--what", "picks", "--format", "imagefolder", "--output", tmp_path / "sorted")
    assert said in run("export", store.folder, *out).output
    assert len(json.loads(run("export", store.folder, *out, "--json").output)["left_out"]) == 1


def test_an_import_without_a_name_adds_no_voter(tmp_path: Path) -> None:
    store, made = make_labeled(tmp_path / "a"), tmp_path / "made.json"
    run("export", store.folder, "--format", "coco", "--output", made)
    before = rows(store)
    assert "Labels: 0 new" in run("import", store.folder, made, "--format", "coco").output and rows(store) == before
    run("import", store.folder, made, "--format", "coco", "--who", "imported")
    assert "imported" in {who for _, who, _, _ in answers(store)}


def test_forms_are_those_that_there_are() -> None:
    from rarefish.exchange.exporter import FORMATS
    from rarefish.exchange.importer import READERS

    assert set(FORMS) == set(FORMATS) == set(READERS)


def test_a_prefix_of_urls_is_refused_where_a_format_has_no_urls(store: Store, tmp_path: Path) -> None:
    refused = run("export", store.folder, "--output", tmp_path / "labels.csv", "--url-prefix", "http://images/")
    assert isinstance(refused.exception, ArgumentError) and "Leave out --url-prefix" in str(refused.exception)
