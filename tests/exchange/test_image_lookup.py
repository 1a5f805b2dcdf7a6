"""A table's columns for an image agree, or its row is left out: a label never goes to another image."""

import shutil
from pathlib import Path

import pytest

from rarefish.data.file_listing import list_pool
from rarefish.errors import DataError
from rarefish.exchange.import_labels import Imported, import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import asked
from tests.workspaces import make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=12, trusted=2, picks=6)


def take_csv(store: Store, text: str) -> Imported:
    source = store.folder.parent / "labels.csv"
    source.write_text(text)
    return import_labels(store, "csv", source, "me")


def test_numbers_of_her_own_are_not_ours(store: Store) -> None:
    """The first picks are images 7, 8, …: the rows' own numbers 7 and 8 must not meet them."""
    images = asked(store)
    lines = [f"{images[0] + row},image {5 - row:05d}.png,{'cat' if row % 2 else 'owl'}" for row in range(6)]
    assert take_csv(store, "\n".join(["id,path,label", *lines])).count == 6
    assert settled(store) == {images[5 - row]: 0 if row % 2 else 2 for row in range(6)}


def test_an_id_alone_names_no_image(store: Store) -> None:
    with pytest.raises(DataError, match="has the columns id, class; it needs image, path or hash"):
        take_csv(store, f"id,label\n{asked(store)[0]},cat\n")
    assert take_csv(store, f"image,label\n{asked(store)[0]},cat\n").count == 1


def test_number_path_and_hash_name_the_same_image(store: Store) -> None:
    first, second = asked(store)[:2]
    with store.reading() as connection:
        hashes = dict(connection.execute("SELECT id, hash FROM image").fetchall())
    lines = [
        f"{first},image 00001.png,,cat",
        f",image 00001.png,{hashes[first]},cat",
        f"{first},image 00001.png,{hashes[first]},cat",
        f"{first},image 00000.png,{hashes[second]},cat",
        f"{first},nowhere.png,{hashes[first]},cat",
        f"{second},image 00001.png,{hashes[second]},dog",
    ]
    done = take_csv(store, "\n".join(["image,path,hash,class", *lines]))
    two = "image 00001.png are two images of this workspace. Keep only the right one."
    assert done.unknown == (
        f"line 2: image {first} and {two}",
        f"line 3: the hash {hashes[first]} and {two}",
        f"line 4: image {first} and {two}",
        f"line 5: image {first} of this workspace has other content. The file belongs to another workspace.",
        "line 6: the pool has no image nowhere.png.",
    )
    assert done.count == 1 and settled(store) == {second: 1}


def test_the_path_of_a_copy_is_the_same_image(store: Store) -> None:
    pool = Path(store.settings()["pool_root"])
    shutil.copy(pool / "image 00000.png", pool / "copy.png")
    index(store, "pool", *list_pool(pool), jobs=1, shown=False)
    assert take_csv(store, f"image,path,class\n{asked(store)[0]},copy.png,cat\n").count == 1


def test_an_image_is_known_by_number_path_or_hash(store: Store) -> None:
    images = asked(store)
    with store.reading() as connection:
        hashes = dict(connection.execute("SELECT id, hash FROM image").fetchall())
    root = store.settings()["pool_root"]
    text = f"image,path,hash,label\n{images[0]},,,cat\n,image 00001.png,,dog\n,,{hashes[images[2]]},owl\n"
    text += f",{root}/image 00003.png,,cat\n,./x/../image 00004.png,,dog\n"
    assert take_csv(store, text).count == 5
    assert settled(store) == dict(zip(images, [0, 1, 2, 0, 1], strict=False))
