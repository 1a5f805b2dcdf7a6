"""Fixtures shared by the tests of exchange."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rarefish.exchange.exporter import FORMATS, export
from rarefish.workspace.store import Store
from tests.exchange.fake_label_studio import Studio, running
from tests.exchange.labeled_workspaces import make_labeled


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, Path]]:
    """A labeled workspace and an export of its picks per format."""
    folder = tmp_path_factory.mktemp("made")
    store = make_labeled(folder / "a")
    return store, {format: export(store, "picks", format, folder / format) for format in FORMATS}


@pytest.fixture
def studio() -> Iterator[Studio]:
    with running() as server:
        yield server
