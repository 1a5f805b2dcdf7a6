"""A dataset of a stranger is read as data: no image of it is decoded, and no path or address in it is opened."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from PIL import EpsImagePlugin, Image

from rarefish.errors import DataError
from rarefish.exchange.exporter import export
from rarefish.exchange.importer import Imported, import_labels
from rarefish.workspace.answers import settled
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import asked, make_labeled, rows
from tests.workspaces import CLASSES, make_workspace

HANG_S = 60
"""Long enough for a busy machine; a test that hangs fails after it."""
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
PICTURE = datasets.Image()
LABEL = datasets.ClassLabel(names=["cat", "dog", "owl"])
PLACES = {
    "another image column": ("preview", PICTURE, lambda image: image),
    "a list of images": ("preview", datasets.Sequence(PICTURE), lambda image: [image]),
    "an image inside a structure": ("preview", {"of": PICTURE}, lambda image: {"of": image}),
    "our own column": ("rarefish_hash", PICTURE, lambda image: image),
}
"""Where an image can hide -> the column, its feature, and the image as a value of it."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=6, trusted=2, picks=3)


def save(store: Store, place: str, image: dict[str, Any]) -> Path:
    """A dataset with the first pick labeled owl, and the other image hidden in that place."""
    picture = (store.folder.parent / "pool" / "image 00000.png").read_bytes()
    name, feature, as_value = PLACES[place]
    columns = {"image": [{"bytes": picture, "path": None}], "label": [2], name: [as_value(image)]}
    return write(store.folder.parent / "saved", columns, {"image": PICTURE, "label": LABEL, name: feature})


def write(target: Path, columns: dict[str, list[Any]], kinds: dict[str, Any]) -> Path:
    """As `save_to_disk` leaves it, but that would read the files that rows name, and put their bytes inside."""
    features = datasets.Features(kinds)
    datasets.Dataset.from_dict({name: [] for name in columns}, features=features).save_to_disk(str(target))
    table = datasets.Dataset.from_dict(columns, features=features).data.table
    with pyarrow.ipc.new_stream(str(target / "data-00000-of-00001.arrow"), table.schema) as file:
        file.write_table(table)
    state = json.loads((target / "state.json").read_text())
    state["_data_files"] = [{"filename": "data-00000-of-00001.arrow"}]
    (target / "state.json").write_text(json.dumps(state))
    return target


def import_within_time(store: Store, source: Path, let_go: Callable[[], None]) -> Imported | Exception:
    """What the import gives or raises; one that hangs fails the test and is let go."""
    done: list[Imported | Exception] = []

    def work() -> None:
        try:
            done.append(import_labels(store, "huggingface", source, "me"))
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANG_S)
    if not done:
        let_go()
        thread.join(HANG_S)
        pytest.fail("The import hangs.")
    return done[0]


def release(fifo: Path) -> None:
    """Ends the wait of whoever opened the pipe for reading."""
    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and the paths it was asked for."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check_taken(store: Store, done: Imported | Exception) -> None:
    assert done == Imported(1, 0, (), ()) and settled(store) == {asked(store)[0]: 2}


@pytest.mark.parametrize("place", PLACES)
def test_an_eps_image_starts_no_program(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    marker, tools = tmp_path / "started", tmp_path / "bin"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch '{marker}'\nexit 1\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for the program once
    done = import_labels(store, "huggingface", save(store, place, {"bytes": EPS, "path": None}), "me")
    assert not marker.exists()
    check_taken(store, done)


@pytest.mark.parametrize("place", PLACES)
def test_a_pipe_in_the_place_of_an_image_is_not_opened(store: Store, tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    source = save(store, place, {"bytes": None, "path": str(tmp_path / "pipe.png")})
    check_taken(store, import_within_time(store, source, lambda: release(tmp_path / "pipe.png")))


@pytest.mark.parametrize("place", PLACES)
def test_an_address_in_the_place_of_an_image_is_not_asked(store: Store, place: str) -> None:
    with listening() as (address, seen):
        source = save(store, place, {"bytes": None, "path": f"{address}/image.png"})
        done = import_within_time(store, source, lambda: None)
    assert seen == []
    check_taken(store, done)


def test_a_label_that_is_an_image_is_refused_undecoded(store: Store) -> None:
    columns = {"image": [{"bytes": b"", "path": None}], "label": [{"bytes": None, "path": "http://127.0.0.1:9/x.png"}]}
    source = write(store.folder.parent / "saved", columns, {"image": PICTURE, "label": PICTURE})
    with pytest.raises(DataError, match="The label of row 0 must be text"):
        import_labels(store, "huggingface", source, "me")


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_a_pipe_in_the_place_of_a_file_is_refused(store: Store, name: str) -> None:
    source = save(store, "another image column", {"bytes": EPS, "path": None})
    (source / name).unlink()
    os.mkfifo(source / name)
    done = import_within_time(store, source, lambda: release(source / name))
    assert isinstance(done, DataError) and f"{name} is not a regular file" in str(done)
    assert rows(store) == []


@pytest.mark.parametrize("name", ["../elsewhere/data.arrow", "/dev/zero", "", "..", "http://127.0.0.1:9/x", 7])
def test_a_data_set_names_files_of_its_own_folder_only(store: Store, name: object) -> None:
    source = save(store, "another image column", {"bytes": EPS, "path": None})
    (source / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DataError, match="Nothing was imported"):
        import_labels(store, "huggingface", source, "me")
    (source / "state.json").unlink()
    (source / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(DataError, match="Nothing was imported"):
        import_labels(store, "huggingface", source, "me")


def test_how_a_data_set_wants_to_be_shown_does_not_matter(store: Store) -> None:
    """state.json may hide columns, or ask for another library to be imported."""
    source = save(store, "another image column", {"bytes": EPS, "path": None})
    state = json.loads((source / "state.json").read_text())
    state |= {"_format_type": "jax", "_format_columns": ["preview"]}
    (source / "state.json").write_text(json.dumps(state))
    check_taken(store, import_labels(store, "huggingface", source, "me"))


@pytest.mark.parametrize("number", [3, -2])
def test_a_class_number_without_a_name_is_refused(store: Store, number: int) -> None:
    columns = {"image": [{"bytes": b"", "path": None}], "label": [number]}
    source = write(store.folder.parent / "saved", columns, {"image": PICTURE, "label": datasets.Value("int64")})
    whole = json.loads((source / "dataset_info.json").read_text())
    whole["features"]["label"] = {"names": LABEL.names, "_type": "ClassLabel"}
    (source / "dataset_info.json").write_text(json.dumps(whole))
    with pytest.raises(DataError, match=f"row 0 has the class {number}, but the dataset has only 3"):
        import_labels(store, "huggingface", source, "me")


def test_huggingface_loads_it(exported: tuple[Store, dict[str, Path]]) -> None:
    store, places = exported
    table: Any = datasets.load_from_disk(str(places["huggingface"]))
    assert table.features["label"].names == list(CLASSES) and len(table) == len(asked(store))
    row = table[0]
    assert isinstance(row["image"], Image.Image) and row["image"].size == (24, 24)
    assert (row["label"], row["round"], row["similarity"], row["center"]) == (0, 1, 1.0, 1)
    labels = {row["rarefish_image"]: row["label"] for row in table if row["label"] >= 0}
    assert labels == settled(store)


def test_huggingface_without_our_columns_goes_by_content(tmp_path: Path) -> None:
    labeled, twin = make_labeled(tmp_path / "a"), make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)
    table: Any = datasets.load_from_disk(str(export(labeled, "labels", "huggingface", tmp_path / "made")))
    bare = table.remove_columns(["rarefish_image", "rarefish_hash"])
    datasets.DatasetDict({"train": bare}).save_to_disk(str(tmp_path / "bare"))
    assert not import_labels(twin, "huggingface", tmp_path / "bare", "me").unknown
    assert settled(twin) == settled(labeled)


def test_a_damaged_data_set_changes_nothing(tmp_path: Path) -> None:
    store = make_labeled(tmp_path / "a")
    made = export(store, "labels", "huggingface", tmp_path / "made")
    before = rows(store)
    arrow = next(made.glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:-500])
    with pytest.raises(DataError, match="not a saved dataset"):
        import_labels(store, "huggingface", made, "me")
    assert rows(store) == before
