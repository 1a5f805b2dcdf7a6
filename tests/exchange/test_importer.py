"""Labels that cannot be imported are reported, broken files change nothing, and votes are counted once.

A label never goes to another image: if the columns of a table disagree about an image, the row is left out.
"""

import difflib
import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rarefish.data.file_listing import list_pool
from rarefish.errors import ArgumentError, DataError, RarefishError
from rarefish.exchange.exporter import FORMATS, export
from rarefish.exchange.importer import Imported, import_labels
from rarefish.workspace.answers import answer, settled, undo
from rarefish.workspace.indexing import index
from rarefish.workspace.store import FILE, Store
from tests.exchange.labeled_workspaces import answers, asked, make_labeled, rows
from tests.workspaces import make_workspace


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_workspace(tmp_path / "a", pool=12, trusted=2, picks=6)


def take_csv(store: Store, text: str | bytes, who: str | None = "me") -> Imported:
    source = store.folder.parent / "labels.csv"
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    return import_labels(store, "csv", source, who)


def test_what_is_not_known_is_told_and_the_rest_taken(store: Store) -> None:
    images = asked(store)
    lines = [
        "image,path,class,answer,who",
        f"{images[0]},,cat,,",
        f"{images[1]},,Dog,,",
        f"{images[1]},,owll,,",
        "9999,,cat,,",
        f"{images[-1] + 1},,cat,,",
        "1,,cat,,",
        ",../../etc/passwd,cat,,",
        ",/etc/passwd,cat,,",
        ",nowhere.png,cat,,",
        ",,cat,,",
        f"{images[2]},,,perhaps,",
        f"{images[2]},,,class,",
        f"{images[2]},,cat,none,",
        f"{images[2]},,cat,,{'x' * 65}",
    ]
    done = take_csv(store, "\n".join(lines))
    assert (done.count, done.already, done.conflicts) == (1, 0, ())
    expected = [
        "line 3: there is no class 'Dog'; 'dog' differs in case.",
        "line 4: there is no class 'owll'. Did you mean owl?",
        "line 5: the pool has no image 9999.",
        f"line 6: image {images[-1] + 1} was not selected in any round.",
        "line 7: the pool has no image 1.",
        "line 8: ../../etc/passwd is outside",
        "line 9: /etc/passwd is outside",
        "line 10: the pool has no image nowhere.png.",
        "line 11: it does not identify an image.",
        "line 12: an answer must be one of class, none, unsure, skip, not 'perhaps'.",
        "line 13: there is no class ''.",
        "line 14: the answer none takes no class",
        "line 15: A name must have 1 to 64",
    ]
    assert len(done.unknown) == len(expected)
    for said, start in zip(done.unknown, expected, strict=True):
        assert said.startswith(start), said


def test_text_that_is_none_is_told_too(store: Store, tmp_path: Path) -> None:
    done = take_csv(store, b"hash,path,class\n\x80abc,,cat\n,\xff.png,cat\n")
    assert done.unknown == ("line 2: '\\udc80abc' is not a hash.", "line 3: the pool has no image \\xff.png.")
    whole = {
        "images": [
            {"id": 1, "file_name": "\ud800"},
            {"id": 2, "file_name": "a\0", "rarefish": {"image": 7, "hash": "\ud800"}},
        ],
        "categories": [{"id": 1, "name": "\ud800"}, {"id": 2, "name": "cat"}],
        "annotations": [{"id": "\ud800\n", "image_id": i, "category_id": c} for i in (1, 2) for c in (1, 2)],
    }
    (tmp_path / "coco.json").write_text(json.dumps(whole))
    done = import_labels(store, "coco", tmp_path / "coco.json", "me")
    assert done.count == 0 and len(done.unknown) == 4 and all(said.isprintable() for said in done.unknown)


def test_a_file_of_another_workspace_is_not_mistaken(store: Store) -> None:
    done = take_csv(store, f"image,hash,class\n{asked(store)[0]},{'0' * 32},cat\n")
    assert done.count == 0 and "belongs to another workspace" in done.unknown[0]


def test_later_answers_stay(store: Store) -> None:
    image = asked(store)[0]
    assert take_csv(store, f"image,class,time\n{image},cat,2026-01-01T10:00Z\n").count == 1
    assert take_csv(store, f"image,class,time\n{image},dog,2026-01-01T12:00+01:00\n").count == 1
    old = take_csv(store, f"image,class,time\n{image},owl,2026-01-01T10:30Z\n")
    assert old.count == 0 and "gave another answer at 2026-01-01T11:00:00.000+00:00" in old.conflicts[0]
    again = take_csv(store, f"image,class,time\n{image},cat,2026-01-01T10:00Z\n")
    assert again.count == 0 and "has given another answer since" in again.conflicts[0]
    undo(store, "me", "undo")
    back = take_csv(store, f"image,class,time\n{image},dog,2026-01-01T12:00+01:00\n")
    assert back.count == 0 and "since this was imported" in back.conflicts[0]
    assert answers(store) == {(image, "me", "class", 0)}


def test_times_say_which_of_two_is_last(store: Store) -> None:
    image, other = asked(store)[:2]
    unclear = take_csv(store, f"image,class\n{image},cat\n{image},dog\n{other},owl\n{other},owl\n")
    assert (unclear.count, unclear.already) == (1, 1)
    assert f"line 2 and line 3: me gave different answers for image {image}" in unclear.conflicts[0]
    text = f"image,class,time\n{image},cat,2026-01-03\n{image},dog,2026-01-02\n"
    assert take_csv(store, text).count == 1 and (image, "me", "class", 0) in answers(store)
    assert take_csv(store, text) == Imported(0, 1, (), ())


def test_a_clock_that_is_ahead_does_not_make_labels_of_the_future(store: Store) -> None:
    image = asked(store)[0]
    assert take_csv(store, f"image,class,time\n{image},cat,2999-01-01\n").count == 1
    answer(store, image, "me", "class", 1, "browser")
    again = take_csv(store, f"image,class,time\n{image},cat,2999-01-01\n")
    assert again.count == 0 and len(again.conflicts) == 1 and settled(store) == {image: 1}


def test_an_answer_in_the_browser_meanwhile_counts(store: Store) -> None:
    image = asked(store)[0]
    answer(store, image, "me", "class", 2, "browser")
    done = take_csv(store, f"image,class,time\n{image},cat,2026-01-03\n")
    assert done.count == 0 and len(done.conflicts) == 1 and settled(store) == {image: 2}


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotations><image name="&b;"/></annotations>'


OUTSIDE = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotations>&a;</annotations>'


@pytest.mark.parametrize(
    ("format", "text", "said"),
    [
        ("cvat", BOMB, "document type"),
        ("cvat", OUTSIDE, "document type"),
        ("cvat", "<other/>", "begins with <other>"),
        ("cvat", '<annotations><image name="a"><tag label="cat"/>', "is truncated"),
        ("cvat", "", "is truncated"),
        ("cvat", '<?xml version="1.0" encoding="no-such"?><annotations/>', "is truncated"),
        ("coco", "[]", "must be an object"),
        ("coco", "{}", "images must be a list"),
        ("coco", '{"images": [], "categories": {}}', "categories must be a list"),
        ("coco", '{"images": [{"id": true}], "categories": []}', "must be a whole number"),
        ("coco", '{"images": [], "categories": [], "annotations": [{"image_id": 1}]}', "does not define"),
        ("coco", "[" * 100_000, "not valid JSON"),
        ("label-studio", "{}", "tasks must be a list"),
        ("label-studio", "[1]", "Entry 1 of tasks must be an object"),
        ("label-studio", '[{"annotations": [{}]}]', "data of a task must be an object"),
        ("label-studio", '[{"data": {}, "annotations": 1}]', "annotations must be a list"),
        ("label-studio", '[{"data": {}, "annotations": [{"result": "x"}]}]', "must be a list"),
        ("fiftyone", "{}", "samples must be a list"),
        ("fiftyone", '{"samples": [{"ground_truth": "cat"}]}', "must be an object"),
        ("fiftyone", '{"samples": [{"ground_truth": {"label": 1}}]}', "must be text"),
        ("fiftyone", '{"samples": [{"ground_truth": {"label": "cat"}}]}', "filepath of sample 1 must be text"),
        ("imagefolder", "", "not a folder"),
        ("huggingface", "", "not a saved dataset"),
    ],
)
def test_a_broken_file_changes_nothing(store: Store, tmp_path: Path, format: str, text: str, said: str) -> None:
    (tmp_path / "labels").write_text(text)
    with pytest.raises(DataError, match=said):
        import_labels(store, format, tmp_path / "labels", "me")
    assert rows(store) == []


FILES = {
    "csv": "",
    "coco": "",
    "cvat": "",
    "label-studio": "tasks.json",
    "fiftyone": "samples.json",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("made")
    store = make_labeled(folder / "a")
    return {format: (export(store, "labels", format, folder / format) / FILES[format]).read_bytes() for format in FILES}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    folder = tmp_path_factory.mktemp("target")
    return make_labeled(folder / "a"), make_workspace(folder / "b", pool=12, trusted=2, picks=8)


@pytest.mark.parametrize("format", FILES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_brings_no_wrong_label(
    made: dict[str, bytes], target: tuple[Store, Store], tmp_path: Path, format: str, data: st.DataObject
) -> None:
    labeled, store = target
    before = rows(store)
    cut = data.draw(st.integers(0, len(made[format]) - 1))
    (tmp_path / "cut").write_bytes(made[format][:cut])
    try:
        import_labels(store, format, tmp_path / "cut", "ann")
    except DataError:
        assert rows(store) == before
    assert {(image, said) for image, _, _, said in answers(store)} <= {
        (image, said) for image, _, _, said in answers(labeled)
    }


@pytest.mark.parametrize("format", FILES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_in_our_own_words(
    made: dict[str, bytes], target: tuple[Store, Store], tmp_path: Path, format: str, data: st.DataObject
) -> None:
    whole = bytearray(made[format])
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "damaged").write_bytes(whole)
    before = rows(target[1])
    try:
        import_labels(target[1], format, tmp_path / "damaged", "ann")
    except RarefishError:
        assert rows(target[1]) == before


KINDS = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3))


@pytest.mark.parametrize("format", ["coco", "label-studio", "fiftyone"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_wrong_types_are_refused_in_our_own_words(
    made: dict[str, bytes], target: tuple[Store, Store], tmp_path: Path, format: str, data: st.DataObject
) -> None:
    whole = json.loads(made[format])
    place = whole
    while isinstance(place, (dict, list)) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(KINDS)
            break
        place = place[key]
    (tmp_path / "wrong").write_text(json.dumps(whole))
    before = rows(target[1])
    try:
        import_labels(target[1], format, tmp_path / "wrong", "ann")
    except RarefishError:
        assert rows(target[1]) == before


def test_all_of_a_file_or_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from rarefish.exchange import importer as imports

    calls = iter(range(3))

    def fail(*given: object, **named: object) -> int:
        if next(calls, None) == 2:
            raise KeyboardInterrupt
        return record(*given, **named)  # pyright: ignore[reportArgumentType]

    record = imports.record
    monkeypatch.setattr(imports, "record", fail)
    with pytest.raises(KeyboardInterrupt):
        take_csv(store, "image,class\n" + "".join(f"{image},cat\n" for image in asked(store)))
    assert rows(store) == []


def test_two_imports_at_once_are_one(tmp_path: Path) -> None:
    made = export(make_labeled(tmp_path / "a"), "labels", "csv", tmp_path / "made.csv")
    store = make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)
    done: list[Imported] = []
    threads = [threading.Thread(target=lambda: done.append(import_labels(store, "csv", made, "me"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.count for one in done) == [0, 0, 0, 10] and len(rows(store)) == 10


@pytest.mark.parametrize("format", FORMATS)
def test_a_nameless_person_is_refused(store: Store, tmp_path: Path, format: str) -> None:
    labeled = make_labeled(tmp_path / "b")
    made = export(labeled, "labels", format, tmp_path / "made")
    with pytest.raises(ArgumentError, match="A name must have"):
        import_labels(store, format, made, " ")


def test_an_unknown_class_is_compared_once_and_while_others_can_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def compare(name: str, *rest: Any, **named: Any) -> list[str]:
        compared.append(name)
        other = sqlite3.connect(store.folder / FILE, timeout=0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # raises at once if the import holds the store
        other.execute("ROLLBACK")
        other.close()
        return close(name, *rest, **named)

    close = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", compare)
    image = asked(store)[0]
    names = [("owll", "wolf", "catt")[row % 3] for row in range(4_000)]
    done = take_csv(store, "image,class\n" + "".join(f"{image},{name}\n" for name in names))
    assert sorted(compared) == ["catt", "owll", "wolf"]
    assert len(done.unknown) == 4_000 and "'owll'. Did you mean owl?" in done.unknown[0]


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


def test_what_was_taken_back_stays_so(labeled: Store, tmp_path: Path) -> None:
    made = export(labeled, "labels", "csv", tmp_path / "made.csv")
    task = undo(labeled, "ann", "undo")
    assert task is not None
    before = rows(labeled)
    done = import_labels(labeled, "csv", made)
    assert (done.count, len(done.conflicts), rows(labeled)) == (0, 1, before)
    assert "ann undid this answer at 20" in done.conflicts[0]
    later = take_csv(labeled, f"image,class,who,time\n{task.image},owl,ann,2999-01-01\n", None)
    assert later.count == 1 and (task.image, "ann", "class", 2) in answers(labeled)


def test_an_undo_gives_the_answer_before_it_back(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "a", pool=6, trusted=1, picks=3)
    image = asked(store)[0]
    answer(store, image, "ann", "class", 0, "cat")
    answer(store, image, "ann", "class", 1, "dog")
    made = export(store, "labels", "csv", tmp_path / "made.csv")
    undo(store, "ann", "undo")
    done = import_labels(store, "csv", made)
    assert done.count == 0 and len(done.conflicts) == 1 and settled(store) == {image: 0}


def test_without_a_time_what_was_taken_back_is_the_same(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "a", pool=6, trusted=1, picks=3)
    image = asked(store)[0]
    answer(store, image, "ann", "class", 0, "cat")
    undo(store, "ann", "undo")
    done = take_csv(store, f"image,class\n{image},cat\n", "ann")
    assert done.count == 0 and "undid this answer" in done.conflicts[0]
    assert take_csv(store, f"image,class\n{image},dog\n", "ann").count == 1


@pytest.mark.parametrize("format", FORMATS)
def test_what_we_exported_is_no_second_vote(labeled: Store, tmp_path: Path, format: str) -> None:
    made, before = export(labeled, "labels", format, tmp_path / "made"), rows(labeled)
    done = import_labels(labeled, format, made)
    assert (done.count, done.unknown, done.conflicts, rows(labeled)) == (0, (), (), before)
    assert done.already >= len(settled(labeled))


@pytest.mark.parametrize("format", ["imagefolder", "coco", "cvat", "fiftyone", "huggingface"])
def test_a_person_who_is_named_has_a_vote(labeled: Store, tmp_path: Path, format: str) -> None:
    made = export(labeled, "labels", format, tmp_path / "made")
    assert import_labels(labeled, format, made, "carl").count == len(settled(labeled))


def test_what_differs_or_is_of_others_is_a_vote(labeled: Store) -> None:
    image = asked(labeled)[0]
    assert settled(labeled)[image] == 0
    assert take_csv(labeled, f"image,class\n{image},cat\n", None).count == 1
    assert (image, "imported", "class", 0) in answers(labeled)
    with labeled.reading() as connection:
        (hash_,) = connection.execute("SELECT hash FROM image WHERE id = ?", (image,)).fetchone()
    assert take_csv(labeled, f"image,hash,class\n{image},{hash_},owl\n", None).count == 1
    assert (image, "imported", "class", 2) in answers(labeled)


def test_a_skip_takes_no_answer_back(labeled: Store) -> None:
    first, second = asked(labeled)[:2]
    text = f"image,answer,class,who\n{first},skip,,ann\n{second},class,owl,carl\n"
    done = take_csv(labeled, text, None)
    assert done.count == 1 and "a skip does not undo an answer" in done.conflicts[0]
    assert (first, "ann", "class", 0) in answers(labeled)


def test_numbers_of_her_own_are_not_ours(store: Store) -> None:
    """The first picks are images 7, 8, …: the rows' own numbers 7 and 8 must not meet them."""
    images = asked(store)
    lines = [f"{images[0] + row},image {5 - row:05d}.png,{'cat' if row % 2 else 'owl'}" for row in range(6)]
    assert take_csv(store, "\n".join(["id,path,label", *lines])).count == 6
    assert settled(store) == {images[5 - row]: 0 if row % 2 else 2 for row in range(6)}


def test_an_id_alone_names_no_image(store: Store) -> None:
    with pytest.raises(DataError, match="has the columns id, class; it needs class and one of image, path and hash"):
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
    two = "image 00001.png are different images of this workspace. Keep only the right one."
    assert done.unknown == (
        f"line 2: image {first} and {two}",
        f"line 3: the hash {hashes[first]} and {two}",
        f"line 4: image {first} and {two}",
        f"line 5: image {first} of this workspace has different content. The file belongs to another workspace.",
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
