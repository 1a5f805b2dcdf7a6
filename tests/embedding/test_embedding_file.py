"""The file of embeddings: rows are done only once they are written, and others can read it."""

from pathlib import Path

import numpy as np
import pytest

from rarefish.data.embeddings import open_embeddings
from rarefish.embedding.embedding_file import (
    HEADER,
    EmbeddingFile,
    Finished,
    Layout,
    check_same_model,
    finish,
    prepare,
    to_ids,
)
from rarefish.errors import ArgumentError, DataError

LAYOUT = Layout("key-", 6, 3, "float32")
VALUES = np.arange(18, dtype=np.float32).reshape(6, 3) + 1
IDS = to_ids([f"id{i}" for i in range(6)])


def filled(path: Path, rows: list[int], layout: Layout = LAYOUT, ids: np.ndarray = IDS) -> None:
    opened = EmbeddingFile.create(path, layout)
    opened.write(np.array(rows), ids[rows], VALUES[rows])
    opened.flush()
    opened.close()


def read(path: Path) -> Finished:
    found = Finished.read(path)
    assert found is not None
    return found


def test_rows_are_done_only_after_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    opened = EmbeddingFile.create(path, LAYOUT)
    opened.write(np.array([0, 1, 4]), IDS[[0, 1, 4]], VALUES[[0, 1, 4]])
    assert not read(path).done.any()
    opened.flush()
    found = read(path)
    assert found.done.tolist() == [True, True, False, False, True, False] and found.layout == LAYOUT
    assert np.array_equal(found.values[[0, 1, 4]], VALUES[[0, 1, 4]]) and not found.values[[2, 3, 5]].any()
    assert found.ids[[0, 1, 4]].tolist() == IDS[[0, 1, 4]].tolist()
    opened.close()


def test_other_programs_can_read_the_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    filled(tmp_path / "x.safetensors", list(range(6)))
    found = load_file(tmp_path / "x.safetensors")
    assert np.array_equal(found["embeddings"], VALUES) and found["done"].tolist() == [1] * 6


def test_vectors_are_found_by_id(tmp_path: Path) -> None:
    filled(tmp_path / "x", [1, 2, 5])
    lookup = read(tmp_path / "x").lookup()
    assert lookup.find(to_ids(["id5", "id0", "unknown", "id2"])).tolist() == [5, -1, -1, 2]
    filled(tmp_path / "y", [])
    assert read(tmp_path / "y").lookup().find(IDS[:2]).tolist() == [-1, -1]


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_working_file_is_kept_if_it_fits(with_ids: bool, tmp_path: Path) -> None:
    path, working = tmp_path / "x", tmp_path / "x.unfinished"
    filled(working, [0, 3])
    prepare(path, working, LAYOUT, IDS if with_ids else None)
    assert read(working).done.tolist() == [True, False, False, True, False, False]


def test_a_new_working_file_takes_over_all_that_is_known(tmp_path: Path) -> None:
    path, working = tmp_path / "x", tmp_path / "x.unfinished"
    filled(path, [0, 1])
    filled(working, [3, 4], Layout("key-", 6, 3, "float32"))
    wanted = to_ids(["id4", "new", "id1", "id3"])
    prepare(path, working, Layout("key-", 4, 3, "float32"), wanted)
    found = read(working)
    assert found.done.tolist() == [True, False, True, True] and found.ids.tolist() == wanted.tolist()
    assert np.array_equal(found.values[[0, 2, 3]], VALUES[[4, 1, 3]])
    other = to_ids([f"id{i}" for i in (5, 4, 3, 2)])  # as many images, but others
    prepare(path, working, Layout("key-", 4, 3, "float32"), other)
    assert read(working).done.tolist() == [False, True, True, False]


def test_a_working_file_killed_at_its_start_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "x.unfinished").write_bytes(b"\0\0")
    prepare(tmp_path / "x", tmp_path / "x.unfinished", LAYOUT, IDS)
    assert not read(tmp_path / "x.unfinished").done.any()


def test_reasons_are_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    path, working = tmp_path / "x.safetensors", tmp_path / "x.unfinished"
    filled(working, [0, 1, 2])
    finish(path, working, LAYOUT, {3: "truncated", 4: "a\nb" * HEADER, 5: "c"})
    found = open_embeddings(path)
    assert not working.exists() and set(found.unreadable) == {3, 4, 5}
    assert found.unreadable[3] == "truncated" and found.unreadable[4] == "The image could not be read."
    assert len(LAYOUT.header(dict.fromkeys(range(100000), "no"))) == HEADER


def test_another_model_and_too_long_ids_are_refused(tmp_path: Path) -> None:
    filled(tmp_path / "x", [0])
    with pytest.raises(ArgumentError, match="computed by another model"):
        check_same_model(tmp_path / "x", read(tmp_path / "x"), Layout("other-", 6, 3, "float32"))
    with pytest.raises(ArgumentError, match="has 3 channels in float32, not 4 in float32"):
        check_same_model(tmp_path / "x", read(tmp_path / "x"), Layout("key-", 6, 4, "float32"))
    with pytest.raises(ArgumentError, match="An id has 33 bytes, but at most 32"):
        to_ids(["a" * 33])
    assert Finished.read(tmp_path / "missing") is None
    (tmp_path / "bad").write_bytes(b"123")
    with pytest.raises(DataError, match="truncated or damaged"):
        Finished.read(tmp_path / "bad")
