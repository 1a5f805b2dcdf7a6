"""The images of an export: URLs, and files that changed since they were indexed."""

import json
from pathlib import Path

import pytest

from rarefish.exchange.exporter import export
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import make_labeled
from tests.workspaces import replace_unnoticed


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


def test_another_picture_of_the_same_size_and_time_is_left_out(labeled: Store, tmp_path: Path) -> None:
    told = list[str]()
    replace_unnoticed(tmp_path / "a" / "pool" / "image 00000.png")
    export(labeled, "labels", "imagefolder", tmp_path / "made", tell=told.append)
    assert told == ["image 00000.png has changed since it was indexed. Restore the original file."]


def test_addresses_are_what_the_user_wants(labeled: Store, tmp_path: Path) -> None:
    own = export(labeled, "picks", "label-studio", tmp_path / "own", url_prefix="https://example.org/images/")
    local = export(labeled, "picks", "label-studio", tmp_path / "local")
    first = [json.loads((made / "tasks.json").read_text())[0]["data"]["image"] for made in (own, local)]
    assert first == ["https://example.org/images/image%2000000.png", "/data/local-files/?d=pool/image%2000000.png"]
