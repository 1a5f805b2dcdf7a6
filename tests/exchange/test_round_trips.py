"""What is exported comes back equal, in every format, and adds nothing the second time."""

import csv
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.errors import ArgumentError, DataError
from rarefish.exchange.export import FORMATS, export
from rarefish.exchange.import_labels import READERS, import_labels
from rarefish.workspace.answers import answer, settled
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store, create_store
from tests.exchange.labeled_workspaces import answers, asked, make_labeled, rows
from tests.workspaces import draw, make_workspace, replace_unnoticed

KEEP_ALL = ("csv", "label-studio")
"""Forms that hold every person's answer; the others have one class an image."""


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


@pytest.fixture
def twin(tmp_path: Path) -> Store:
    """The same images and picks, nothing answered."""
    return make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)


def test_every_form_goes_both_ways() -> None:
    assert FORMATS.keys() == READERS.keys()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("what", ["labels", "picks"])
def test_labels_come_back_equal_and_once(labeled: Store, twin: Store, tmp_path: Path, format: str, what: str) -> None:
    made = export(labeled, what, format, tmp_path / "made")
    first = import_labels(twin, format, made, "import")
    assert first.count > 0 and first.already == 0 and not first.unknown and not first.conflicts
    assert settled(twin) == settled(labeled)
    if format in KEEP_ALL:
        assert answers(twin) == answers(labeled)
    before = rows(twin)
    again = import_labels(twin, format, made, "import")
    assert (again.count, again.already, rows(twin)) == (0, first.count, before)


@pytest.mark.parametrize("format", KEEP_ALL)
def test_own_answers_come_home_without_a_trace(labeled: Store, tmp_path: Path, format: str) -> None:
    before = rows(labeled)
    done = import_labels(labeled, format, export(labeled, "labels", format, tmp_path / "made"), "import")
    assert done.count == 0 and not done.conflicts and rows(labeled) == before


NAMES = (
    st.binary(min_size=1, max_size=40).map(lambda name: name.translate(None, b"/\0")).filter(lambda n: n.strip(b"."))
)
PLAIN = st.text(min_size=1, max_size=30).filter(lambda name: name == name.strip() and name.isprintable())
CLASSES = st.lists(PLAIN, min_size=2, max_size=4, unique_by=str.casefold)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, min_size=2, max_size=3, unique=True), classes=CLASSES)
def test_odd_names_of_files_and_classes(
    tmp_path_factory: pytest.TempPathFactory, format: str, names: list[bytes], classes: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "pool").mkdir()
    for seed, name in enumerate(names):
        draw(folder / "one.png", seed % 3, seed)
        os.rename(folder / "one.png", os.path.join(os.fsencode(folder / "pool"), name + b".png"))
    first, second = (_open(folder, place, classes) for place in ("a", "b"))
    for place, image in enumerate(asked(first)):
        answer(first, image, "ann\u00e9", "class", place % len(classes), str(place))
    made = export(first, "labels", format, folder / "made")
    done = import_labels(second, format, made, "ann\u00e9")
    assert not done.unknown and not done.conflicts, done
    assert answers(second) == answers(first)


def _open(folder: Path, place: str, classes: list[str]) -> Store:
    store = create_store(folder / place, classes)
    index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False)
    draw(folder / "trusted.png", 0, 77)
    (folder / "validation.csv").write_text(f"path,label\ntrusted.png,{_quoted(classes[0])}\n", encoding="utf-8")
    index(store, "validation", *list_trusted(folder / "validation.csv"), jobs=1, shown=False)
    with store.writing() as connection:
        connection.execute("INSERT INTO round VALUES (1, '', '{}')")
        connection.execute(
            "INSERT INTO pick SELECT id, 1, id, NULL, NULL, 1.0, 0, '[[0, 0.5]]', 1 FROM image "
            "WHERE part = 'pool' AND state = 'ready'"
        )
    return store


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


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


@pytest.mark.parametrize("format", ["imagefolder", "fiftyone", "huggingface"])
def test_a_file_that_changed_is_left_out(labeled: Store, twin: Store, tmp_path: Path, format: str) -> None:
    """Or the new picture would go under the label of the old one."""
    pool, told = tmp_path / "a" / "pool", list[str]()
    draw(pool / "image 00000.png", 2, 555)
    os.utime(pool / "image 00001.png")  # another time, the same content
    made = export(labeled, "labels", format, tmp_path / "made", tell=told.append)
    assert told == ["image 00000.png changed since it was indexed. Restore the original file."]
    assert not import_labels(twin, format, made, "me").unknown
    assert settled(twin) == {image: number for image, number in settled(labeled).items() if image != asked(labeled)[0]}
    with pytest.warns(UserWarning, match="00000.png changed"):
        export(labeled, "labels", format, tmp_path / "made")
    for file in pool.iterdir():
        draw(file, 1, int(file.stem[-3:]) + 600)
    with pytest.raises(DataError, match="All 8 images changed"):
        export(labeled, "labels", format, tmp_path / "none")


def test_another_picture_of_the_same_size_and_time_is_left_out(labeled: Store, tmp_path: Path) -> None:
    told = list[str]()
    replace_unnoticed(tmp_path / "a" / "pool" / "image 00000.png")
    export(labeled, "labels", "imagefolder", tmp_path / "made", tell=told.append)
    assert told == ["image 00000.png changed since it was indexed. Restore the original file."]


def test_mistaken_words_are_met_with_the_nearest(labeled: Store, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Did you mean coco"):
        export(labeled, "labels", "cocoo", tmp_path / "x")
    with pytest.raises(ArgumentError, match="Did you mean labels"):
        export(labeled, "label", "coco", tmp_path / "x")
    with pytest.raises(ArgumentError, match="Did you mean cvat"):
        import_labels(labeled, "cvatt", tmp_path, "me")
    with pytest.raises(DataError, match="does not exist"):
        import_labels(labeled, "csv", tmp_path / "nowhere", "me")
    empty = make_workspace(tmp_path / "empty", pool=3, trusted=1)
    with pytest.raises(DataError, match="no picks yet"):
        export(empty, "picks", "csv", tmp_path / "x")


def test_addresses_are_what_the_user_wants(labeled: Store, tmp_path: Path) -> None:
    own = export(labeled, "picks", "label-studio", tmp_path / "own", url_prefix="https://example.org/images/")
    local = export(labeled, "picks", "label-studio", tmp_path / "local")
    first = [json.loads((made / "tasks.json").read_text())[0]["data"]["image"] for made in (own, local)]
    assert first == ["https://example.org/images/image%2000000.png", "/data/local-files/?d=pool/image%2000000.png"]


@pytest.mark.parametrize("name", ["=cmd|'x'!A1", "+1", "-rf", "@SUM(A1)", "'=1", "\t=1"])
def test_a_table_holds_no_formula_and_names_come_back(tmp_path: Path, name: str) -> None:
    (tmp_path / "pool").mkdir()
    for seed, file in enumerate((f"{name}.png", "other.png")):
        draw(tmp_path / "one.png", seed, seed)
        os.rename(tmp_path / "one.png", tmp_path / "pool" / file)
    plain = name.strip()
    first, second = (_open(tmp_path, place, [plain, "owl"]) for place in ("a", "b"))
    for image in asked(first):
        answer(first, image, plain, "class", 0, str(image))
    made = export(first, "labels", "csv", tmp_path / "made.csv")
    with made.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    marked = {"=", "+", "-", "@", "\t", "\r"}
    assert not [cell for row in table for cell in row.values() if cell[:1] in marked]
    assert {row["class"] for row in table} == {f"'{plain}"} and table[0]["similarity"] == "1.0"
    no_numbers = [{key: "" if key in ("image", "hash") else cell for key, cell in row.items()} for row in table]
    with made.open("w", newline="", encoding="utf-8") as file:  # as a tool that keeps the paths alone
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(no_numbers)
    done = import_labels(second, "csv", made)
    assert not done.unknown and answers(second) == answers(first)
