"""Files as published, and files that are damaged."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rarefish.data.arrays import Arrays, Pixels, normalized, read_idx, read_npz, read_svhn, scale_of
from rarefish.errors import DataError

PIXELS = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
NUMBERS = np.array([2, 0, 1], np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path: Path, packed: bool) -> None:
    paths = [tmp_path / ("images" + ".gz" * packed), tmp_path / ("labels" + ".gz" * packed)]
    for path, array in zip(paths, (PIXELS, NUMBERS), strict=True):
        path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    read = read_idx(*paths)
    assert np.array_equal(read.images[..., 0], PIXELS) and np.array_equal(read.labels, NUMBERS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(PIXELS)[:-5], "is truncated: 55 bytes for 3 × 4 × 5"),
        (b"\x00\x00\x09\x03" + idx(PIXELS)[4:], "is not an IDX file of bytes"),
        (b"", "is not an IDX file"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "images").write_bytes(content)
    (tmp_path / "labels").write_bytes(idx(NUMBERS))
    with pytest.raises(DataError, match=f"images.*{message}"):
        read_idx(tmp_path / "images", tmp_path / "labels")
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(PIXELS))[:-12])
    with pytest.raises(DataError, match="images.gz is damaged"):
        read_idx(tmp_path / "images.gz", tmp_path / "labels")


def test_bytes_are_scaled_as_numbers_are() -> None:
    """The slow twin: all as float tensors."""
    rng = np.random.default_rng(0)
    whole = Arrays(rng.integers(0, 200, (25, 6, 5, 3), dtype=np.uint8), np.arange(25) % 4)
    own, other = np.array([3, 24, 7, 7, 0]), np.array([1, 2])
    pool, rest = normalized([whole[rows].to_tensors() for rows in (own, other)])
    scale = scale_of(whole.images, own, chunk_size=2)
    for rows, expected in ((own, pool), (other, rest)):
        labels = torch.from_numpy(whole.labels[rows])
        pixels = Pixels(torch.from_numpy(whole.images), torch.from_numpy(rows), labels, *scale)
        torch.testing.assert_close(pixels.take(torch.arange(len(rows))), expected.tensors[0], atol=1e-5, rtol=1e-5)
        assert pixels.targets == expected.tensors[1].tolist() and len(pixels) == len(rows)
        image, label = pixels[1]
        assert torch.equal(image, pixels.take(torch.tensor([1]))[0]) and label == pixels.targets[1]


def test_svhn(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io", reason="SciPy is not installed")
    images = np.random.default_rng(0).integers(0, 255, (32, 32, 3, 4), dtype=np.uint8)
    path = tmp_path / "train_32x32.mat"
    scipy_io.savemat(path, {"X": images, "y": np.array([[10], [1], [9], [10]], np.uint8)}, do_compression=True)
    read = read_svhn(path)
    assert read.images.shape == (4, 32, 32, 3) and np.array_equal(read.images[2], images[..., 2])
    assert read.labels.tolist() == [0, 1, 9, 0]
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="train_32x32.mat is damaged"):
        read_svhn(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_svhn(tmp_path / "none.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn_cut_off_anywhere(tmp_path: Path, compressed: bool) -> None:
    scipy_io = pytest.importorskip("scipy.io", reason="SciPy is not installed")
    path, images = tmp_path / "cut.mat", np.arange(4 * 4 * 3 * 5, dtype=np.uint8).reshape(4, 4, 3, 5)
    scipy_io.savemat(path, {"X": images, "y": np.arange(5)[:, None]}, do_compression=compressed)
    raw, whole = path.read_bytes(), read_svhn(path)
    for length in range(0, len(raw), 3):
        path.write_bytes(raw[:length])
        try:
            read = read_svhn(path)
        except DataError:
            continue
        # What is missing was only padding.
        assert np.array_equal(read.images, whole.images) and np.array_equal(read.labels, whole.labels)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, images=PIXELS, labels=NUMBERS)
    assert read_npz(path).images.shape == (3, 4, 5, 1)
    with pytest.raises(DataError, match="has no array 'x', only images, labels"):
        read_npz(path, images="x")
    np.savez(path, images=PIXELS.astype(float), labels=NUMBERS)
    with pytest.raises(DataError, match="images are float64"):
        read_npz(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="data.npz is damaged"):
        read_npz(path)


def test_arrays_become_normalized_tensors() -> None:
    part = Arrays(PIXELS[..., None], NUMBERS)
    images, labels = part.to_tensors().tensors
    assert (
        images.shape == (3, 1, 4, 5) and float(images.max()) == pytest.approx(59 / 255) and labels.dtype == torch.long
    )
    first, second = normalized([part.to_tensors(), part[np.array([0])].to_tensors()])
    assert abs(float(first.tensors[0].mean())) < 1e-6 and float(first.tensors[0].std()) == pytest.approx(1)
    assert torch.equal(second.tensors[0][0], first.tensors[0][0])
    with pytest.raises(DataError, match="3 images, but 2 labels"):
        Arrays(PIXELS, NUMBERS[:2])


def write_npz(path: Path, **arrays: Any) -> None:
    np.savez(path, **arrays)


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, PIXELS)


HEADER = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1125899906842624,), }"
HUGE = b"\x93NUMPY\x01\x00v\x00" + HEADER.ljust(117) + b"\n"
"""An array of a petabyte, by its header."""


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: write_npz(path, images=PIXELS, labels=np.eye(3)),
            r"labels are float64 \(3, 3\), but must be one",
        ),
        (lambda path: write_npz(path, images=PIXELS, labels=np.array(["a"] * 3)), "labels are <U1"),
        (lambda path: write_npz(path, images=PIXELS, labels=np.array(1)), r"labels are int64 \(\)"),
        (lambda path: write_npz(path, images=PIXELS[0, 0], labels=NUMBERS), "images are uint8"),
        (lambda path: write_npz(path, images=PIXELS[:, :0], labels=NUMBERS), r"images are uint8 \(3, 0, 5, 1\)"),
        (lambda path: write_npz(path, images=np.array([None]), labels=NUMBERS), "damaged or not an .npz file"),
        (write_npy, "damaged or not an .npz file"),
        (lambda path: path.write_bytes(HUGE), "damaged or not an .npz file"),
        (lambda path: path.write_bytes(b""), "damaged or not an .npz file"),
        (lambda path: path.mkdir(), "it is a folder"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_a_malformed_npz_file_gets_a_sentence(tmp_path: Path, write: Callable[[Path], Any], message: str) -> None:
    write(tmp_path / "data.npz")
    with pytest.raises(DataError, match=rf"data\.npz.*{message}"):
        read_npz(tmp_path / "data.npz")


def test_labels_in_a_column_of_their_own_are_taken(tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", images=PIXELS, labels=NUMBERS[:, None])
    assert read_npz(tmp_path / "data.npz").labels.tolist() == NUMBERS.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((4, 4, 3), np.uint8), "y": np.zeros((3, 1))}, "damaged or not an SVHN file"),
        ({"X": np.zeros((4, 4, 3, 2)), "y": np.zeros((2, 1), np.uint8)}, "images are float64"),
        ({"X": np.zeros((4, 4, 3, 2), np.uint8), "y": np.array(["a", "b"])}, "labels are <U1"),
        ({"X": np.zeros((4, 4, 3, 2), np.uint8), "y": np.array([[1.5], [2.0]])}, "labels are float64"),
        ({"X": np.zeros((4, 4, 3, 2), np.uint8), "y": np.zeros((2, 3), np.uint8)}, r"labels are uint8 \(2, 3\)"),
        ({"X": np.zeros((4, 4, 3, 2), np.uint8)}, "damaged or not an SVHN file: 'y'"),
    ],
)
def test_a_malformed_mat_file_gets_a_sentence(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    scipy_io = pytest.importorskip("scipy.io", reason="SciPy is not installed")
    scipy_io.savemat(tmp_path / "train.mat", content)
    with pytest.raises(DataError, match=rf"train\.mat.*{message}"):
        read_svhn(tmp_path / "train.mat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(9), "is truncated"),
        (idx(PIXELS) + b"more", "too long: it contains more than 60 bytes for 3 × 4 × 5"),
    ],
)
def test_an_idx_file_that_is_shorter_or_longer_than_it_says(tmp_path: Path, content: bytes, message: str) -> None:
    for name in ("images", "images.gz"):
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        (tmp_path / "labels").write_bytes(idx(NUMBERS))
        with pytest.raises(DataError, match=rf"{name}.*({message})"):
            read_idx(tmp_path / name, tmp_path / "labels")
