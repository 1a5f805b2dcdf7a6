"""Files as published, and files that are damaged."""

import gzip
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rarefish.data.arrays import Arrays, Pixels, normalized, read_idx, read_npz, read_svhn, scale_of
from rarefish.data.image_files import ImageFiles, read_folder, read_manifest
from rarefish.data.parquet import open_labeled, open_parquet, open_pool
from rarefish.errors import ArgumentError, DataError

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
        (idx(PIXELS)[:-5], "is cut off: 55 bytes for 3 × 4 × 5"),
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
    scale = scale_of(whole.images, own, at_once=2)
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
    with pytest.raises(DataError, match="has no array 'x'; it has images, labels"):
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
    with pytest.raises(DataError, match="3 images but 2 labels"):
        Arrays(PIXELS, NUMBERS[:2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("cat", "red"), ("dog", "blue")):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (10 + i, 8), colour).save(tmp_path / name / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_folder(folder: Path) -> None:
    data = read_folder(folder, size=(6, 4))
    assert len(data) == 4 and data.classes == ("cat", "dog") and data.targets == [0, 0, 1, 1]
    image, label = data[2]
    assert image.shape == (3, 6, 4) and label == 1 and image[:, 0, 0].tolist() == [0.0, 0.0, 1.0]
    assert read_folder(folder, mode="L", size=(5, 5))[0][0].shape == (1, 5, 5)


def test_an_image_that_cannot_be_decoded_is_named_or_skipped(folder: Path) -> None:
    broken = folder / "dog" / "0.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(DataError, match="1 of 4 images cannot be decoded: 0.png. Mend them, or skip them"):
        read_folder(folder)
    skipped = read_folder(folder, on_error="skip")
    assert len(skipped) == 3 and skipped.unreadable == (broken,)
    later = read_folder(folder, on_error="later")
    with pytest.raises(DataError, match="0.png cannot be decoded"):
        _ = later[2]


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folders inside"):
        read_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no image that can be read"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_folder(tmp_path / "nowhere")


def test_manifest(folder: Path) -> None:
    manifest = folder / "all.csv"
    manifest.write_text("path,label\ncat/1.png,kitten\ndog/0.png,puppy\n")
    data = read_manifest(manifest)
    assert data.classes == ("kitten", "puppy") and [p.name for p in data.paths] == ["1.png", "0.png"]
    manifest.write_text("path,label\ncat/1.png,10\ndog/0.png,9\n")
    assert read_manifest(manifest).classes == ("9", "10")
    manifest.write_text("file\nx\n")
    with pytest.raises(DataError, match="has the columns file; it needs path and label"):
        read_manifest(manifest)
    manifest.write_text("path,label\ncat/7.png,a\ncat/1.png,b\n")
    with pytest.raises(DataError, match="1 of 2 images cannot be decoded: 7.png"):
        read_manifest(manifest)


def test_images_on_the_scale_a_model_wants(folder: Path) -> None:
    mean, std = (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)
    plain, scaled = read_folder(folder, size=(6, 4)), open_labeled(folder, (6, 4), mean=mean, std=std)
    assert torch.allclose(scaled[0][0][:, 0, 0], torch.tensor([1.0, -1.0, 0.0])) and scaled.targets == plain.targets
    pool = open_pool(folder, (6, 4), mean=mean, std=std)
    assert torch.equal(pool[2][0], scaled[2][0]) and not torch.equal(pool[2][0], plain[2][0])
    assert open_pool(folder, (6, 4), "L", (0.5,))[0][0].min() < 0
    for mode, bad_mean, bad_std, message in (
        ("L", mean, None, "mode L need 1 numbers for mean, not 3"),
        ("RGB", None, (1.0, 0.0, 1.0), "above 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            open_pool(folder, (6, 4), mode, bad_mean, bad_std)


def test_parquet_on_the_scale_a_model_wants(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": [(folder / "cat/0.png").read_bytes(), b"none"]}), folder / "a.parquet")
    scaled = open_pool(folder / "a.parquet", (6, 4), mean=(1.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert scaled[0][0].abs().max() == 0 and open_parquet([folder / "a.parquet"], (6, 4), "RGB")[0][0].max() == 1
    with pytest.raises(DataError, match="row 1 cannot be decoded: it is no image of a known kind"):
        _ = scaled[1]


def test_what_is_hidden_or_no_file_is_no_image(folder: Path) -> None:
    """What notebooks, cameras and Apple's computers leave in folders."""
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / "cat" / "old.png").mkdir()
    (folder / "cat" / "._0.png").write_bytes(b"not an image")
    (folder / "cat" / ".thumbs").mkdir()
    Image.new("L", (4, 4)).save(folder / "cat" / ".thumbs" / "0.png")
    Image.new("L", (4, 4)).save(folder / "cat" / "old.png" / "2.PNG")
    data = read_folder(folder)
    assert data.classes == ("cat", "dog") and data.targets == [0, 0, 0, 1, 1]
    names = [Path(path).name for path in open_pool(folder, (4, 4)).paths]
    assert names == ["0.png", "1.png", "2.PNG", "0.png", "1.png"]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    name = os.fsdecode(b"caf\xe9.png")
    Image.new("L", (4, 4), 255).save(tmp_path / "a" / "plain.png")
    (tmp_path / "a" / "plain.png").rename(tmp_path / "a" / name)
    assert read_folder(tmp_path, size=(2, 2))[0][0].min() == 1
    (tmp_path / "a" / name).write_bytes(b"none")
    with pytest.raises(DataError, match=r"1 of 1 images cannot be decoded: caf\\udce9.png"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match=r"caf\\udce9.png cannot be decoded"):
        _ = ImageFiles((tmp_path / "a" / name,), (0,), ("a",))[0]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(folder: Path) -> None:
    (folder / "dog").chmod(0)
    try:
        with pytest.raises(DataError, match="dog cannot be listed: Permission denied"):
            open_pool(folder, (4, 4))
    finally:
        (folder / "dog").chmod(0o755)


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
        (lambda path: write_npz(path, images=PIXELS, labels=np.eye(3)), r"labels are float64 \(3, 3\); need one whole"),
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
        (bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(9), "is cut off"),
        (idx(PIXELS) + b"more", "too long: it holds more than 60 bytes for 3 × 4 × 5"),
    ],
)
def test_an_idx_file_that_is_shorter_or_longer_than_it_says(tmp_path: Path, content: bytes, message: str) -> None:
    for name in ("images", "images.gz"):
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        (tmp_path / "labels").write_bytes(idx(NUMBERS))
        with pytest.raises(DataError, match=rf"{name}.*({message})"):
            read_idx(tmp_path / name, tmp_path / "labels")


@pytest.mark.parametrize("name", ["pool.csv", "pool.parquet", "pool/1.png", "pool/1.parquet"])
def test_a_pipe_in_place_of_a_file_is_refused_or_left_out(tmp_path: Path, name: str) -> None:
    """In a process of its own: what waits for a pipe waits for ever."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / "pool").mkdir()
    os.mkfifo(tmp_path / name)
    script = (
        "import sys; from pathlib import Path; from rarefish.errors import DataError\n"
        "from rarefish.data.parquet import open_labeled, open_pool\n"
        "for read in (lambda path: open_pool(path, (4, 4))[0], lambda path: open_labeled(path, (4, 4))):\n"
        "    try: read(Path(sys.argv[1])); print('opened')\n"
        "    except DataError as error: print(error)\n"
    )
    source = tmp_path / ("pool" if name.startswith("pool/") else name)
    done = subprocess.run([sys.executable, "-c", script, str(source)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    pool, _ = done.stdout.splitlines()
    assert "not a regular file" in pool


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"path,label\na.png\n", "has fewer cells in row 1 than columns"),
        (b"path,label\n\xff\xfe,a\n", "not a CSV file in UTF-8"),
        (b'path,label\n"' + b"x" * 200_000 + b'",a\n', "field larger than field limit"),
        (b"", "has the columns ; it needs path and label"),
    ],
)
def test_a_malformed_manifest_gets_a_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "all.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"all\.csv.*{message}"):
        read_manifest(tmp_path / "all.csv")


def test_a_manifest_that_a_spreadsheet_saved_is_read(folder: Path) -> None:
    (folder / "all.csv").write_text("path,label\ncat/0.png,a\ndog/0.png,b\n", encoding="utf-8-sig")
    assert len(read_manifest(folder / "all.csv")) == len(open_pool(folder / "all.csv", (4, 4))) == 2


def test_parquet_files_with_other_columns_are_named(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = [(folder / "cat/0.png").read_bytes()]
    parquet.write_table(pa.table({"image": content}), folder / "a.parquet")
    parquet.write_table(pa.table({"img": content, "id": [1]}), folder / "b.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has its images in the column image, and .*b\.parquet has"):
        open_pool(folder, (4, 4))
    parquet.write_table(pa.table({"image": [[1, 2]], "img": content}), folder / "b.parquet")
    pool = open_pool(folder, (4, 4))
    assert pool[0][0].shape == (3, 4, 4)
    with pytest.raises(DataError, match="Row 1 has no image in its column image"):
        _ = pool[1]
    (folder / "b.parquet").unlink()
    (folder / "b.parquet").mkdir()
    with pytest.raises(DataError, match=r"b\.parquet cannot be read: it is a folder"):
        open_pool(folder, (4, 4))


def test_a_parquet_file_that_is_damaged_later_gives_images_that_cannot_be_read(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": [(folder / "cat/0.png").read_bytes()] * 3}), folder / "a.parquet")
    pool = open_pool(folder / "a.parquet", (4, 4))
    (folder / "a.parquet").write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    with pytest.raises(DataError, match=r"Row 1 cannot be read from .*a\.parquet"):
        _ = pool[1]
