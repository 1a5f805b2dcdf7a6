"""The one folder walk and the one manifest reader."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rarefish.data.file_listing import list_pool, list_trusted, name_classes
from rarefish.errors import DataError
from tests.workspaces import draw, make_images


@contextmanager
def without_rights() -> Iterator[None]:
    """Root may read everything, so it becomes somebody else for a while."""
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
        ("path,label\na.png,cat\nb.png\n", "line 3: there is no label"),
        ("path,label\n,cat\n", "line 2: there is no path"),
        ("path,label\n" + "x" * 200_000 + ",cat\n", "field larger than field limit"),
        ("\ufeffname,label\n", "has the columns name, label; it needs path, label"),
    ],
)
def test_manifests_with_mistakes(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=word):
        list_trusted(tmp_path / "list.csv")
    (tmp_path / "good.csv").write_text("\ufeffpath,label\na.png,cat\n", encoding="utf-8")
    assert list_trusted(tmp_path / "good.csv")[1][0].label == "cat"
