"""A labeling server that the tests of a module share."""

from collections.abc import Iterator

import pytest

from rarefish.workspace.store import Store
from tests.labeling.serving import Client, Running, running
from tests.workspaces import make_workspace


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
