"""Near-copies in a workspace: found across its parts, kept, and not asked about twice."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from rarefish.embedding.embedding_file import EmbeddingFile, Layout
from rarefish.errors import ArgumentError
from rarefish.workspace import near_copies
from rarefish.workspace.active_learning import choose_round
from rarefish.workspace.embeddings import FOLDER, embedding_file
from rarefish.workspace.near_copies import Copy, NearCopies, copy_lines, find_near_copies
from rarefish.workspace.store import Store
from tests.workspace.small_workspace import RUNNING, pretrained
from tests.workspaces import make_workspace

A, B, C, D, V = (Copy(number, "pool", b"%d.png" % number) for number in range(1, 6))
V = Copy(9, "validation", b"cat/9.png")


def write_embeddings(store: Store, copies: dict[int, int]) -> None:
    """Random embeddings, of which those of some image ids are noisy copies of those of others."""
    rng = np.random.default_rng(0)
    with store.reading() as connection:
        rows = connection.execute("SELECT id, part, hash FROM image ORDER BY id").fetchall()
    values = {row["id"]: rng.normal(size=40).astype(np.float32) for row in rows}
    for image, original in copies.items():
        values[image] = 2 * values[original] + (rng.normal(size=40) / 10).astype(np.float32)
    for part in ("validation", "pool"):
        own = [row for row in rows if row["part"] == part]
        layout = Layout("key", len(own), 40, "float32")
        opened = EmbeddingFile.create(embedding_file(store, part), layout)
        ids = np.array([row["hash"].encode() for row in own])
        opened.write(np.arange(len(own)), ids, np.stack([values[row["id"]] for row in own]))
        opened.flush()
        opened.close()


def test_copies_are_found_within_and_across_parts(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=8, trusted=2)
    assert find_near_copies(store).pairs == ()
    write_embeddings(store, {8: 7, 10: 7, 12: 3})
    found = find_near_copies(store)
    groups = [[one.image for one in group] for group in found.groups()]
    assert groups == [[3, 12], [7, 8, 10]]
    assert found.superfluous([]) == {12, 8, 10}
    assert found.superfluous([8]) == {12, 7, 10}
    assert copy_lines(found.groups()) == [
        "  3 pool images are near-copies of each other (1 group: pool/image 00000.png and pool/image 00003.png)",
        "  1 pool images are near-copies of validation images (1 group: validation/dog/0.png and pool/image 00005.png)",
    ]


def test_the_pairs_are_kept_until_the_images_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_workspace(tmp_path, pool=8, trusted=2)
    write_embeddings(store, {8: 7})
    first = find_near_copies(store)
    monkeypatch.setattr(near_copies, "near_copy_pairs", None)
    assert find_near_copies(store) == first
    with store.writing() as connection:
        connection.execute("UPDATE image SET state = 'duplicate' WHERE id = 8")
    with pytest.raises(TypeError):
        find_near_copies(store)
    monkeypatch.undo()
    assert find_near_copies(store).pairs == ()
    place = store.folder / FOLDER / near_copies.FILE
    place.write_text("damaged")
    assert find_near_copies(store).pairs == () and json.loads(place.read_text())["pairs"] == []


def test_a_chain_of_copies_keeps_every_other_one() -> None:
    chain = NearCopies((A, B, C, D), ((0, 1), (1, 2), (2, 3)))
    assert chain.superfluous([]) == {2, 4} and len(chain.groups()) == 1
    assert chain.superfluous([2]) == {1, 3}
    assert NearCopies((V, A, B), ((0, 1), (1, 2))).superfluous([]) == {1}


def test_a_selection_does_not_ask_about_near_copies(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="not near-copies of images .* use --allow-near-copies"):
        choose_round(store, 45, running=RUNNING)
    count = 45 - len(find_near_copies(store).superfluous([]))
    assert 0 < count < 45
    choose_round(store, count, running=RUNNING)
    with store.reading() as connection:
        picked = {image for (image,) in connection.execute("SELECT image FROM pick")}
        how = json.loads(connection.execute("SELECT how FROM round").fetchone()["how"])
    assert picked.isdisjoint(find_near_copies(store).superfluous([])) and "left out as near-copies" in how["notes"][-1]
    choose_round(store, 45 - count, allow_near_copies=True, running=RUNNING)
    assert os.path.exists(store.folder / FOLDER / near_copies.FILE)
