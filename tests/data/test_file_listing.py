"""The one folder walk and the one manifest reader, which `rarefish select` and `rarefish init` share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner

from rarefish.cli.main import cli
from rarefish.data.file_listing import list_pool, list_trusted, name_classes, walk
from rarefish.data.open_dataset import open_labeled, open_pool
from rarefish.errors import DataError
from rarefish.workspace.store import open_store
from tests.workspaces import draw, make_images


@contextmanager
def without_rights() -> Iterator[None]:
    """Drop root's rights, which allow reading everything, for the duration of the block."""
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_folder_without_permission_is_named() -> None:
    with TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "pool" / "secret"
        draw(folder / "a.png", 0, 0)
        folder.chmod(0)
        with without_rights(), pytest.raises(DataError, match="pool/secret cannot be listed: Permission denied"):
            list_pool(Path(name) / "pool")
        folder.chmod(0o700)


def test_links_empty_classes_and_hidden_files(tmp_path: Path) -> None:
    make_images(tmp_path, pool=1, trusted=2)
    trusted = tmp_path / "validation"
    (trusted / "owl").rename(tmp_path / "elsewhere")
    (trusted / "owl").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    (trusted / "yak").mkdir()
    (trusted / ".hidden").mkdir()
    draw(trusted / "cat" / "._shadow.png", 0, 3)
    _, files = list_trusted(trusted)
    assert len(files) == 6 and name_classes(trusted, files) == ["cat", "dog", "owl", "yak"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("path,label\na.png,cat\nb.png\n", "line 3: the label is empty"),
        ("path,label\n,cat\n", "line 2: the path is empty"),
        ("path,label\n" + "x" * 200_000 + ",cat\n", "field larger than field limit"),
        ("\ufeffname,label\n", "has the columns name, label, but needs path and label"),
    ],
)
def test_manifests_with_mistakes(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=word):
        list_trusted(tmp_path / "list.csv")
    (tmp_path / "good.csv").write_text("\ufeffpath,label\na.png,cat\n", encoding="utf-8")
    assert list_trusted(tmp_path / "good.csv")[1][0].label == "cat"


Contents = tuple[list[str], list[tuple[str, str]]]
"""Paths of the pool, and paths and class names of the validation set, relative to the folder of both."""


def read_as_select(pool: Path, validation: Path) -> Contents:
    """Return what `rarefish select` reads."""
    images, labeled = open_pool(pool, (8, 8)), open_labeled(validation, (8, 8))
    labels = [labeled.classes[label] for label in labeled.targets]
    start = pool.parent
    pairs = zip(labeled.paths, labels, strict=True)
    return (
        [str(Path(path).relative_to(start)) for path in images.paths],
        [(str(path.relative_to(start)), label) for path, label in pairs],
    )


def read_as_init(pool: Path, validation: Path) -> Contents:
    """Return what `rarefish init` puts into its workspace."""
    work, start = pool.parent / "work", pool.parent
    command = ["init", str(work), "--pool", str(pool), "--validation", str(validation), "--jobs", "1"]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    store = open_store(work)
    settings, classes = store.settings(), store.classes()
    with store.reading() as connection:
        rows = connection.execute("SELECT part, path, class FROM image ORDER BY id").fetchall()
    store.close()

    def full(row: Any) -> str:
        root = Path(settings[f"{row['part']}_root"])
        return str((root / os.fsdecode(row["path"])).relative_to(start))

    return (
        [full(row) for row in rows if row["part"] == "pool"],
        [(full(row), classes[row["class"]]) for row in rows if row["part"] == "validation"],
    )


READERS = pytest.mark.parametrize("read", [read_as_select, read_as_init])


@READERS
def test_a_manifest_with_a_byte_order_mark_is_read(tmp_path: Path, read: Callable[[Path, Path], Contents]) -> None:
    make_images(tmp_path, pool=2, trusted=1)
    pool, trusted = tmp_path / "pool.csv", tmp_path / "trusted.csv"
    pool.write_text("path,note\npool/image 00001.png,a\n", encoding="utf-8-sig")
    trusted.write_text("path,label\nvalidation/owl/0.png,big\nvalidation/cat/0.png,a\n", encoding="utf-8-sig")
    assert read(pool, trusted) == (
        ["pool/image 00001.png"],
        [("validation/owl/0.png", "big"), ("validation/cat/0.png", "a")],
    )


@READERS
def test_links_to_folders_are_followed_and_hidden_files_skipped(
    tmp_path: Path, read: Callable[[Path, Path], Contents]
) -> None:
    make_images(tmp_path, pool=1, trusted=1)
    pool, trusted = tmp_path / "pool", tmp_path / "validation"
    for number, place in enumerate(("disk/in", "pool/a-b", "pool/a", "pool/.trash")):
        draw(tmp_path / place / "x.png", 0, 50 + number)
    draw(pool / "._x.png", 0, 60)
    (pool / "disk").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/loop").symlink_to(tmp_path / "disk")
    (pool / "pool").symlink_to(pool)
    (trusted / "owl").rename(tmp_path / "elsewhere")
    (trusted / "owl").symlink_to(tmp_path / "elsewhere")
    draw(trusted / ".hidden" / "x.png", 0, 70)
    draw(trusted / "cat" / "._0.png", 0, 71)
    assert read(pool, trusted) == (
        ["pool/a/x.png", "pool/a-b/x.png", "pool/disk/in/x.png", "pool/image 00000.png"],
        [(f"validation/{name}/0.png", name) for name in ("cat", "dog", "owl")],
    )


@READERS
@pytest.mark.parametrize("part", ["pool", "validation"])
def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, part: str, read: Callable[[Path, Path], Contents]
) -> None:
    make_images(tmp_path, pool=1, trusted=1)
    (tmp_path / part / "cat").mkdir(exist_ok=True)
    (tmp_path / part / "cat" / "disk").symlink_to(tmp_path / "not mounted")
    with pytest.raises(DataError, match="cat/disk cannot be listed: No such file or directory. Make it readable"):
        read(tmp_path / "pool", tmp_path / "validation")


@READERS
@pytest.mark.parametrize("row", ["pool/image 00000.png,", ",cat", "pool/image 00000.png"])
def test_an_empty_cell_is_an_error(tmp_path: Path, row: str, read: Callable[[Path, Path], Contents]) -> None:
    make_images(tmp_path, pool=1, trusted=1)
    (tmp_path / "trusted.csv").write_text(f"path,label\n{row}\n")
    with pytest.raises(DataError, match=r"trusted\.csv, line 2: the (path|label) is empty\. Complete or remove"):
        read(tmp_path / "pool", tmp_path / "trusted.csv")


@READERS
def test_paths_may_hold_any_bytes(tmp_path: Path, read: Callable[[Path, Path], Contents]) -> None:
    make_images(tmp_path, pool=1, trusted=1)
    name = os.fsdecode(b"caf\xe9.png")
    (tmp_path / "pool/image 00000.png").rename(tmp_path / "pool" / name)
    (tmp_path / "pool.csv").write_bytes(b"path\npool/caf\xe9.png\n")
    assert read(tmp_path / "pool.csv", tmp_path / "validation")[0] == [f"pool/{name}"]


def test_paths_are_relative_to_the_root_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path / "a" / "x.png", 0, 0)
    monkeypatch.chdir(tmp_path / "a")
    assert walk(Path(".")) == walk(Path("../a/")) == walk(tmp_path / "a") == [b"x.png"]
    assert walk(Path("..")) == [b"a/x.png"]
