"""An export appears whole or not at all, and never replaces a file that is not an export."""

from pathlib import Path

import pytest

from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.exporter import FORMATS, export
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import make_labeled


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


def test_an_export_never_replaces_what_is_not_ours(labeled: Store, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    for format in FORMATS:
        for target in (mine, folder):
            with pytest.raises(ArgumentError, match="was not exported by rarefish"):
                export(labeled, "labels", format, target)
    export(labeled, "labels", "csv", tmp_path / "own.csv")
    (tmp_path / "own.csv~").write_text("precious")
    with pytest.raises(ArgumentError, match="own.csv~ exists and was not exported"):
        export(labeled, "labels", "csv", tmp_path / "own.csv")
    assert mine.read_text() == "precious" and [p.name for p in folder.iterdir()] == ["inside"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_earlier_export_is_replaced_and_kept_beside(labeled: Store, tmp_path: Path, format: str) -> None:
    target = tmp_path / "new folder" / "made"
    export(labeled, "labels", format, target)
    export(labeled, "picks", format, target)
    assert {path.name for path in target.parent.iterdir()} == {"made", "made~"}


def test_a_failed_export_leaves_nothing(labeled: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for file in (tmp_path / "a" / "pool").iterdir():
        file.unlink()
    for format in ("imagefolder", "fiftyone", "huggingface"):
        with pytest.raises(DataError, match="Restore it"):
            export(labeled, "labels", format, out / format)
    assert list(out.iterdir()) == []
