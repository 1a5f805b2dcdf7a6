"""Embeddings from arrays and files of every kind, and what is wrong with them in one sentence."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rarefish.data.embeddings import Embeddings, are_embeddings, blocks_of, open_embeddings, to_float32
from rarefish.data.reader import InMemory, Reader, labels_of
from rarefish.distributed.fingerprints import digest_data
from rarefish.errors import ArgumentError, DataError, EmptyEmbeddingsWarning, LabelError, NotFiniteError

TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


def read_only(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "source",
    [
        TABLE,
        TABLE.astype(np.float64),
        TABLE.astype(">f4"),
        read_only(TABLE),
        np.repeat(TABLE, 2, axis=1)[:, ::2],
        np.asfortranarray(TABLE),
        torch.from_numpy(TABLE),
        torch.from_numpy(TABLE).double().requires_grad_(),
        (TABLE, None),
        Embeddings(TABLE),
    ],
    ids=[
        "float32",
        "float64",
        "big-endian",
        "read-only",
        "strided",
        "fortran",
        "tensor",
        "grad",
        "tuple",
        "embeddings",
    ],
)
def test_tables_of_every_kind_give_the_same_vectors(source: Any) -> None:
    found = open_embeddings(source)
    assert isinstance(found, InMemory) and (len(found), found.width) == (7, 4)
    for rows in ([0, 1, 2], [6], [5, 1, 1], list(range(7))):
        taken = found.take(torch.tensor(rows))
        assert taken.dtype == torch.float32 and torch.equal(taken, torch.from_numpy(TABLE[rows]))
    assert found.take(torch.tensor([], dtype=torch.long)).shape == (0, 4)
    vector = found[-1]
    assert isinstance(vector, torch.Tensor) and torch.equal(vector, torch.from_numpy(TABLE[-1]))
    with pytest.raises(IndexError):
        found[7]


def test_half_precision_is_converted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    half = TABLE.astype(np.float16)
    assert torch.equal(open_embeddings(half).take(torch.arange(7)), torch.from_numpy(half.astype(np.float32)))
    assert torch.equal(
        open_embeddings(torch.from_numpy(TABLE).bfloat16()).take(torch.arange(7)),
        torch.from_numpy(TABLE).bfloat16().float(),
    )
    monkeypatch.setattr("rarefish.data.embeddings.BLOCK_BYTES", 3 * half.shape[1] * half.itemsize)
    blocks = list(blocks_of(half))
    assert [first for first, _ in blocks] == [0, 3, 6]
    assert np.array_equal(np.concatenate([block for _, block in blocks]), half)


def write_npy(path: Path) -> Path:
    np.save(path / "x.npy", TABLE)
    return path / "x.npy"


def write_npz(path: Path) -> Path:
    np.savez(path / "x.npz", embeddings=TABLE, labels=np.arange(7), other=np.ones((2, 3)))
    return path / "x.npz"


def write_safetensors(path: Path) -> Path:
    from safetensors.numpy import save_file

    save_file({"features": TABLE, "labels": np.arange(7)}, path / "x.safetensors")
    return path / "x.safetensors"


def write_parquet(path: Path, kind: str = "list") -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    flat = pa.array(TABLE.ravel())
    column = (
        pa.FixedSizeListArray.from_arrays(flat, 4)
        if kind == "fixed"
        else pa.ListArray.from_arrays(pa.array(range(0, 29, 4), pa.int32()), flat)
    )
    table = pa.table({"vector": column, "name": list("abcdefg"), "label": list(range(7)), "id": list("gfedcba")})
    parquet.write_table(table, path / "x.parquet", row_group_size=3)
    return path / "x.parquet"


@pytest.mark.parametrize(
    ("write", "is_labeled"),
    [
        (write_npy, False),
        (write_npz, True),
        (write_safetensors, True),
        (write_parquet, True),
        (lambda path: write_parquet(path, "fixed"), True),
    ],
)
def test_files_of_every_kind(write: Callable[[Path], Path], is_labeled: bool, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert are_embeddings(path) and are_embeddings(str(path))
    found = open_embeddings(path)
    assert np.array_equal(found.values, TABLE) and found.path == path
    assert (found.labels is not None) == is_labeled
    if found.labels is not None:
        assert found.labels.tolist() == list(range(7)) and labels_of(found) is not None
    mapped = isinstance(found.values, np.memmap)
    assert mapped == (path.suffix in (".npy", ".safetensors"))


def test_a_column_is_named_after_the_path_or_as_an_argument(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=TABLE, b=2 * TABLE)
    with pytest.raises(DataError, match=r"has several tables: a, b\. Name one: .*x\.npz#a\."):
        open_embeddings(tmp_path / "x.npz")
    assert np.array_equal(open_embeddings(f"{tmp_path}/x.npz#b").values, 2 * TABLE)
    assert np.array_equal(open_embeddings(tmp_path / "x.npz", column="b").values, 2 * TABLE)
    with pytest.raises(DataError, match="has no vectors named 'c', only a, b"):
        open_embeddings(f"{tmp_path}/x.npz#c")


@pytest.mark.parametrize("write", [write_npy, write_npz, write_safetensors, write_parquet])
@pytest.mark.parametrize("kept", [0.0, 0.05, 0.9])
def test_a_truncated_file_is_one_sentence(write: Callable[[Path], Path], kept: float, tmp_path: Path) -> None:
    path = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DataError, match=r"truncated or damaged: [^\n]*\. Compute or copy it again\.") as caught:
        open_embeddings(path)
    assert str(caught.value).startswith(str(path))


def bad_values() -> list[tuple[Any, type[Exception], str]]:
    holes = TABLE.copy()
    holes[[2, 5], 1] = np.nan
    holes[6, 0] = -np.inf
    return [
        (holes, NotFiniteError, "NaN or infinity in 3 of 7 rows: 2, 5, 6"),
        (np.full((2, 2), 1e300), NotFiniteError, "in 2 of 2 rows"),  # not finite in float32
        (np.ones(4, np.float32), DataError, r"must be a table \(rows, channels\), not an array of shape \(4,\)"),
        (np.ones((4, 0), np.float32), DataError, "at least one row and one channel"),
        (np.ones((0, 4), np.float32), DataError, "at least one row and one channel"),
        (np.ones((4, 2), np.int64), DataError, "must be float16, float32 or float64, not int64"),
        ([1, 2], ArgumentError, "not a list"),
        ("x.txt", ArgumentError, "is not a file of embeddings"),
        ("missing.npy", DataError, "missing.npy does not exist"),
        ((TABLE, [1, 2]), LabelError, "must be 7 integers"),
        ((TABLE, np.ones(7)), LabelError, "not float64 values"),
        ((TABLE, TABLE, TABLE), ArgumentError, "not 3 values"),
    ]


@pytest.mark.parametrize(("source", "error", "message"), bad_values())
def test_bad_input_is_named(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_embeddings(source)


def test_rows_without_a_direction_are_named() -> None:
    table = TABLE.copy()
    table[[1, 4]] = 0
    with pytest.warns(EmptyEmbeddingsWarning, match="2 of 7 rows are all zero: 1, 4"):
        open_embeddings(table)


def test_ids_and_labels_are_checked() -> None:
    found = open_embeddings(TABLE, ids=list("abcdefg"), labels=torch.arange(7))
    assert found.ids is not None and found.ids.tolist() == list("abcdefg")
    (batch,) = Reader().read(found, labels=True)
    assert found[3][1] == 3 and batch.labels is not None and batch.labels.tolist() == list(range(7))
    with pytest.raises(DataError, match="There are 2 ids for 7 embeddings"):
        open_embeddings(TABLE, ids=["a", "b"])
    with pytest.raises(DataError, match=r"2 ids occur more than once: a, c\."):
        open_embeddings(TABLE, ids=list("aabccde"))
    with pytest.raises(ArgumentError, match="in the tuple and in labels="):
        open_embeddings((TABLE, np.arange(7)), labels=np.arange(7))


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path)
    (tmp_path / "x.lance").mkdir()
    monkeypatch.setattr("rarefish.data.embeddings.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=re.escape("pip install 'rarefish[parquet]'")):
        open_embeddings(path)
    with pytest.raises(ArgumentError, match="pip install pylance"):
        open_embeddings(tmp_path / "x.lance")


def test_vectors_of_different_widths_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"vector": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="different widths: 1, 2, 3"):
        open_embeddings(tmp_path / "x.parquet")
    parquet.write_table(pa.table({"vector": [[1.0, 2.0], None]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="missing vectors"):
        open_embeddings(tmp_path / "y.parquet")


def test_unreadable_rows_are_left_out_by_the_reader() -> None:
    data = Embeddings(TABLE, labels=np.arange(7), unreadable={1: "truncated", 4: "missing"})
    left: dict[int, str] = {}
    batches = list(Reader(batch_size=3).read(data, labels=True, unreadable=left))
    assert torch.cat([batch.index for batch in batches]).tolist() == [0, 2, 3, 5, 6]
    assert torch.equal(torch.cat([batch.images for batch in batches]), torch.from_numpy(TABLE[[0, 2, 3, 5, 6]]))
    assert left == {1: "truncated", 4: "missing"}
    with pytest.raises(DataError, match="Cannot read image 1: truncated"):
        list(Reader().read(data))
    with pytest.raises(DataError, match="missing"):
        data[4]
    kept = data.only([4, 2, 0])
    assert kept.unreadable == {0: "missing"} and kept.labels is not None and kept.labels.tolist() == [4, 2, 0]
    assert np.array_equal(kept.values, TABLE[[4, 2, 0]])


def test_labels_that_are_missing_are_an_error() -> None:
    with pytest.raises(LabelError, match="Item 0 has no label"):
        list(Reader().read(Embeddings(TABLE), labels=True))


def test_fingerprints_change_with_values_labels_and_model(tmp_path: Path) -> None:
    path = write_npy(tmp_path)
    base = open_embeddings(TABLE)
    other = TABLE.copy()
    other[3, 3] += 1
    assert digest_data(base) == digest_data(open_embeddings(TABLE.copy()))
    for changed in (Embeddings(other), Embeddings(TABLE, labels=np.arange(7)), Embeddings(TABLE, model="x")):
        assert digest_data(base) != digest_data(changed)
    mapped = open_embeddings(path)
    assert digest_data(mapped, with_contents=True) == digest_data(base, with_contents=True)
    before = digest_data(mapped)
    np.save(path, other)
    assert digest_data(mapped) != before


def test_a_large_map_is_checked_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float16, (20_000, 64))
    large[:] = 1
    large[-1, 0] = 2
    large.flush()
    monkeypatch.setattr("rarefish.data.embeddings.BLOCK_BYTES", 2**16)
    tracemalloc.start()
    found = open_embeddings(tmp_path / "x.npy")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 < found.values.nbytes
    assert float(found.take(torch.arange(19_990, 20_000))[-1, 0]) == 2


def test_float32_in_memory_is_not_copied() -> None:
    assert to_float32(TABLE).data_ptr() == TABLE.ctypes.data
    assert to_float32(read_only(TABLE)).data_ptr() != TABLE.ctypes.data
