"""Files as published, and files that are damaged."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rarefish.datasets.arrays import Arrays, Pixels, normalized, read_idx, read_npz, read_svhn, scale_of
from rarefish.datasets.files import ImageFiles, read_folder, read_manifest
from rarefish.datasets.sources import open_labeled, open_parquet, open_pool
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
