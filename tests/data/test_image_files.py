"""Folders and manifests of labeled images."""

import os
from pathlib import Path

import pytest
from PIL import Image

from rarefish.data.image_files import ImageFiles, read_folder, read_manifest
from rarefish.data.open_dataset import open_pool
from rarefish.errors import DataError


def test_folder(folder: Path) -> None:
    data = read_folder(folder, size=(6, 4))
    assert len(data) == 4 and data.classes == ("cat", "dog") and data.targets == [0, 0, 1, 1]
    image, label = data[2]
    assert image.shape == (3, 6, 4) and label == 1 and image[:, 0, 0].tolist() == [0.0, 0.0, 1.0]
    assert read_folder(folder, mode="L", size=(5, 5))[0][0].shape == (1, 5, 5)


def test_an_image_that_cannot_be_decoded_is_named_or_skipped(folder: Path) -> None:
    broken = folder / "dog" / "0.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(DataError, match="1 of 4 images cannot be decoded: 0.png. Repair or remove them, or leave"):
        read_folder(folder)
    skipped = read_folder(folder, on_error="skip")
    assert len(skipped) == 3 and skipped.unreadable == (broken,)
    later = read_folder(folder, on_error="later")
    with pytest.raises(DataError, match="0.png cannot be decoded"):
        _ = later[2]


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folders with images inside"):
        read_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no folders with images inside"):
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
    with pytest.raises(DataError, match="has the columns file, but needs path and label"):
        read_manifest(manifest)
    manifest.write_text("path,label\ncat/7.png,a\ncat/1.png,b\n")
    with pytest.raises(DataError, match="1 of 2 images cannot be decoded: 7.png"):
        read_manifest(manifest)
    with pytest.raises(DataError, match="is a folder, not a CSV file"):
        read_manifest(folder)


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"path,label\na.png\n", "line 2: the label is empty"),
        (b"path,label\na.png,\xff\xfe\n", "not a UTF-8 CSV file"),
        (b'path,label\n"' + b"x" * 200_000 + b'",a\n', "field larger than field limit"),
        (b"", "has the columns none, but needs path and label"),
    ],
)
def test_a_malformed_manifest_gets_a_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "all.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"all\.csv.*{message}"):
        read_manifest(tmp_path / "all.csv")


def test_a_manifest_that_a_spreadsheet_saved_is_read(folder: Path) -> None:
    (folder / "all.csv").write_text("path,label\ncat/0.png,a\ndog/0.png,b\n", encoding="utf-8-sig")
    assert len(read_manifest(folder / "all.csv")) == len(open_pool(folder / "all.csv", (4, 4))) == 2
