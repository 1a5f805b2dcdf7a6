"""Image folders: one folder per class, and files moved between them."""

from pathlib import Path

from rarefish.exchange.exporter import export
from rarefish.exchange.importer import import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import answers, asked
from tests.workspaces import CLASSES, make_workspace


def test_imagefolder_is_what_torchvision_reads(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
    folder = places["imagefolder"]
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == [*CLASSES, "unlabeled"]
    found = {int(p.stem): p.parent.name for p in folder.glob("*/*.png") if p.parent.name != "unlabeled"}
    assert found == {image: CLASSES[number] for image, number in settled(store).items()}


def test_moving_a_file_to_another_folder_is_an_answer(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "a", pool=6, trusted=1, picks=3)
    folder = export(store, "picks", "imagefolder", tmp_path / "sorted")
    first = sorted((folder / "unlabeled").iterdir())[0]
    first.rename(folder / "owl" / "renamed.png")
    assert import_labels(store, "imagefolder", folder, "me").count == 1
    assert answers(store) == {(asked(store)[0], "me", "class", 2)}
