"""`rarefish check` finds what it should find: each kind of damage, done by hand."""

from pathlib import Path

import pytest

from rarefish.workspace.answers import answer, take
from rarefish.workspace.round_history import add_training
from rarefish.workspace.store import FILE, open_store
from rarefish.workspace.verification import verify
from tests.workspaces import make_workspace

DAMAGE = {
    "but their labels indicate the opposite": "UPDATE pick SET is_open = 1 - is_open WHERE rank = 0",
    "no round has picked": (
        "INSERT INTO label (image, who, made_at, answer, ticket) "
        "SELECT id, 'x', 'now', 'none', 'x' FROM image WHERE part = 'validation' LIMIT 1"
    ),
    "answer by someone else": (
        "INSERT INTO label (image, who, made_at, answer, undoes, ticket) "
        "SELECT image, 'x', 'now', 'undo', id, 'x' FROM label LIMIT 1"
    ),
    "picked images are not in the pool": "UPDATE image SET state = 'duplicate' WHERE id IN (SELECT image FROM pick)",
    "gaps in their ranks": "UPDATE pick SET rank = 9 WHERE rank = 1",
}


@pytest.mark.parametrize("word", DAMAGE)
def test_each_kind_of_damage(tmp_path: Path, word: str) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=2)
    answer(store, take(store, "ann")[0].image, "ann", "class", 1, "t")
    assert not verify(store)
    with store.writing() as connection:
        connection.execute(DAMAGE[word])
    assert any(word in sentence for sentence in verify(store))


def test_weights_that_are_gone(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, trusted=1)
    add_training(store, labels_spent=1, weights="1.pt", how={}, accuracy=0.5, recall=[0.5, None, 1.0], counts=[1, 0, 1])
    assert verify(store) == ["The weights models/1.pt are missing. Train again."]


def test_a_file_with_a_hole(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=30, trusted=2, picks=2)
    with store.writing() as connection:
        connection.execute("INSERT INTO setting VALUES ('much', ?)", ('"' + "x" * 40_000 + '"',))
    store._connections.own().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store._connections.own().close()
    path = store.folder / FILE
    content = bytearray(path.read_bytes())
    content[8192:20480] = b"\x55" * 12288
    path.write_bytes(content)
    try:
        said = verify(open_store(store.folder))
    except Exception as error:
        said = [str(error)]
    assert any("damaged" in sentence or "cannot be used" in sentence for sentence in said), said
