"""Files that were moved, copied, edited or removed between two runs of `rarefish init`."""

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.errors import DataError
from rarefish.models.preprocessing import Input
from rarefish.workspace.answers import answer, settled, take
from rarefish.workspace.dataset import open_images
from rarefish.workspace.indexing import Indexed, fingerprint, index
from rarefish.workspace.reconciliation import Changes, Content, FoundFile, Row, reconcile
from rarefish.workspace.store import Store, create_store
from rarefish.workspace.verification import verify
from tests import forked_processes
from tests.workspaces import CLASSES, add_round, draw, make_images, make_workspace


def init(store: Store) -> tuple[Indexed, Indexed]:
    """What `rarefish init` does to the images."""
    folder = store.folder.parent
    return (
        index(store, "validation", *list_trusted(folder / "validation"), jobs=1, shown=False),
        index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False),
    )


def rows_of(store: Store, part: str = "pool") -> list[dict[str, Any]]:
    with store.reading() as connection:
        return [dict(row) for row in connection.execute("SELECT * FROM image WHERE part = ? ORDER BY id", (part,))]


def ready(store: Store, part: str = "pool") -> dict[str, int]:
    """Path -> id of the images that can be used."""
    return {os.fsdecode(row["path"]): row["id"] for row in rows_of(store, part) if row["state"] == "ready"}


def label_all(store: Store, count: int) -> dict[int, int]:
    for number, task in enumerate(take(store, "ann", count)):
        answer(store, task.image, "ann", "class", number % len(CLASSES), f"ticket {task.image}")
    return settled(store)


def pool_file(store: Store, number: int) -> Path:
    return store.folder.parent / "pool" / f"image {number:05d}.png"


def test_ten_moved_files_keep_their_rows(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=10, trusted=1)
    before = ready(store)
    (tmp_path / "pool" / "sub").mkdir()
    for name in before:
        (tmp_path / "pool" / name).rename(tmp_path / "pool" / "sub" / name)
    _, found = init(store)
    assert ready(store) == {f"sub/{name}": image for name, image in before.items()}
    assert found.taken == 10 and found.new == 0 and not found.left_out and not verify(store, deep=True)


def test_renamed_labeled_images_keep_their_labels_and_train(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=1, picks=4)
    labels = label_all(store, 3)
    for number in range(6):
        pool_file(store, number).rename(tmp_path / "pool" / f"new {5 - number}.png")
    init(store)
    assert settled(store) == labels and len(ready(store)) == 6 and not verify(store, deep=True)
    shelf = open_images(store, "pool", Input((8, 8)), labels)
    assert len(shelf) == 3 and [shelf[i][1] for i in range(3)] == [labels[image] for image in shelf.ids]
    assert all("new " in path for path in shelf.paths)


def test_swapped_names_and_chains(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=1, picks=3)
    before, spare = ready(store), tmp_path / "spare.png"
    first, second, third, fourth = (pool_file(store, number) for number in (0, 1, 2, 3))
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    fourth.rename(tmp_path / "pool" / "last.png")  # third -> fourth -> last
    third.rename(fourth)
    init(store)
    assert ready(store) == {
        first.name: before[second.name],
        second.name: before[first.name],
        fourth.name: before[third.name],
        "last.png": before[fourth.name],
        **{name: before[name] for name in list(before)[4:]},
    }
    assert not verify(store, deep=True)


@pytest.mark.parametrize("was", ["duplicate", "unreadable", "gone", "ready"])
def test_a_labeled_image_takes_a_name_that_the_store_knows(tmp_path: Path, was: str) -> None:
    make_images(tmp_path, pool=3, trusted=1)
    other = tmp_path / "pool" / "other.png"
    if was == "duplicate":
        shutil.copy(tmp_path / "pool" / "image 00002.png", other)
    elif was == "unreadable":
        other.write_bytes(b"no image")
    else:
        draw(other, 1, 77)
    store = create_store(tmp_path / "work", CLASSES)
    init(store)
    if was == "gone":
        other.unlink()
        init(store)
    add_round(store, 1)
    ((image, _),) = label_all(store, 1).items()
    pool_file(store, 0).replace(other)
    init(store)
    assert ready(store)["other.png"] == image and pool_file(store, 0).name not in ready(store)
    assert len(ready(store)) == 3 and not verify(store, deep=True)


def test_the_remaining_copy_takes_the_place_of_the_indexed_one(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=1)
    labels = label_all(store, 1)
    for number in (0, 1):
        shutil.copy(pool_file(store, number), tmp_path / "pool" / f"copy {number}.png")
    before = ready(store)
    _, found = init(store)
    assert ready(store) == before and found.left_out["duplicate"][0] == 2
    for number in (0, 1):
        pool_file(store, number).unlink()
    init(store)
    after = ready(store)
    assert set(after) == {"copy 0.png", "copy 1.png", "image 00002.png"}
    assert {after["copy 0.png"]} == set(labels) and not verify(store, deep=True)


def test_another_folder_corrects_a_trusted_label_also_of_copies(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=1, trusted=2)
    trusted = tmp_path / "validation"
    (trusted / "cat" / "0.png").rename(trusted / "owl" / "from cat.png")
    for name in ("1.png", "copy of 1.png"):
        shutil.copy(trusted / "dog" / "1.png", trusted / "cat" / f"from dog {name}")
    (trusted / "dog" / "1.png").unlink()
    seen, _ = init(store)
    labels = {os.fsdecode(row["path"]): row["class"] for row in rows_of(store, "validation")}
    assert all(number == CLASSES.index(path.split("/")[0]) for path, number in labels.items())
    assert seen.taken == 6 and set(seen.left_out) == {"duplicate"} and not verify(store, deep=True)


def test_two_classes_for_one_image_change_nothing(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=1, trusted=2)
    before = rows_of(store, "validation")
    shutil.copy(tmp_path / "validation" / "cat" / "0.png", tmp_path / "validation" / "owl" / "0.png")
    with pytest.raises(DataError, match="cat/0.png and owl/0.png are the same image in two classes"):
        init(store)
    assert rows_of(store, "validation") == before


def test_an_image_leaves_the_validation_set_and_another_one_enters(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=2, picks=2)
    labels = label_all(store, 2)
    shutil.copy(pool_file(store, 0), tmp_path / "validation" / "cat" / "from pool.png")
    (tmp_path / "validation" / "dog" / "0.png").rename(tmp_path / "pool" / "from validation.png")
    init(store)
    assert set(ready(store)) == {"image 00001.png", "image 00002.png", "from validation.png"}
    (tmp_path / "validation" / "cat" / "from pool.png").unlink()
    init(store)
    assert len(ready(store)) == 4 and set(labels) <= set(ready(store).values()) and not verify(store, deep=True)


def test_of_copies_that_leave_the_validation_set_the_labeled_one_is_used(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, trusted=1, picks=1)
    before, both = ready(store), tmp_path / "validation" / "cat" / "both.png"
    for copy in (both, tmp_path / "pool" / "a copy.png"):
        shutil.copy(pool_file(store, 0), copy)
    init(store)
    assert list(ready(store)) == ["image 00001.png"]
    both.unlink()
    init(store)
    assert ready(store) == before and not verify(store, deep=True)


def test_two_labeled_rows_of_one_image_both_stay() -> None:
    """Older versions could leave such rows."""
    content = Content("a", 1, 1)
    rows = [Row(number, b"%d.png" % number, None, content, "ready", "", is_kept=True) for number in (1, 2)]
    files = [FoundFile(row.path, None, content) for row in rows]
    assert reconcile("pool", rows, files) == Changes([], [], [], 0)


def test_what_replaced_an_image_people_were_asked_about_is_left_out(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=1)
    before, content = rows_of(store), pool_file(store, 0).read_bytes()
    draw(pool_file(store, 0), 2, 999)
    init(store)
    init(store)
    assert rows_of(store) == before
    (tmp_path / "pool" / "back.png").write_bytes(content)
    init(store)
    after = ready(store)
    assert len(after) == 4 and after["back.png"] == before[0]["id"] and not verify(store, deep=True)


def test_two_labeled_images_of_which_one_takes_the_place_of_the_other(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=2)
    before, content = ready(store), pool_file(store, 1).read_bytes()
    pool_file(store, 0).replace(pool_file(store, 1))
    init(store)
    assert ready(store)[pool_file(store, 1).name] == before[pool_file(store, 0).name]
    (tmp_path / "pool" / "back.png").write_bytes(content)
    init(store)
    assert ready(store)["back.png"] == before[pool_file(store, 1).name] and not verify(store, deep=True)


def test_a_center_that_was_replaced_is_not_shown_as_another_image(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=3)
    before = {row["id"]: row["hash"] for row in rows_of(store, "validation")}
    draw(tmp_path / "validation" / "cat" / "0.png", 0, 999)
    seen, _ = init(store)
    after = {row["id"]: row["hash"] for row in rows_of(store, "validation")}
    assert seen.taken == 3 and len(after) == 4 and before.items() <= after.items() and not verify(store, deep=True)


def test_files_that_stayed_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_workspace(tmp_path, pool=4, trusted=1)
    seen = list[str]()

    def counted(content: bytes) -> str:
        seen.append(fingerprint(content))
        return seen[-1]

    monkeypatch.setattr("rarefish.workspace.indexing.fingerprint", counted)
    pool_file(store, 0).rename(tmp_path / "pool" / "new.png")
    init(store)
    assert len(seen) == 1


def steps_of_indexing(folder: Path, count: int) -> int:
    """Of SQLite's machine, in hundreds: unlike seconds they do not depend on what else the computer does."""
    (folder / "pool").mkdir(parents=True)
    for number in range(count):
        (folder / "pool" / f"{number}.pgm").write_bytes(b"P5 2 1 255\n" + number.to_bytes(2))
    store, steps = create_store(folder / "work", CLASSES), 0

    def counted() -> None:
        nonlocal steps
        steps += 1

    store._connections.own().set_progress_handler(counted, 100)
    assert index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False).taken == count
    return steps


def test_the_work_grows_with_the_number_of_images_and_not_with_its_square(tmp_path: Path) -> None:
    few, many = (steps_of_indexing(tmp_path / str(count), count) for count in (300, 1_200))
    assert 0 < many < 6 * few


KILL = """
import os, signal, sys
from pathlib import Path
from rarefish.workspace.indexing import index
from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.workspace.store import open_store

store, left = open_store(Path(sys.argv[1])), int(sys.argv[2])


def counted(statement):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)


store._connections.own().set_trace_callback(counted)
index(store, "validation", *list_trusted(store.folder.parent / "validation"), jobs=1, shown=False)
index(store, "pool", *list_pool(store.folder.parent / "pool"), jobs=1, shown=False)
"""


def test_a_run_killed_at_any_statement_is_completed_by_the_next(tmp_path: Path) -> None:
    """At every fifth one, as each costs a process."""
    store = make_workspace(tmp_path / "first", pool=12, trusted=1, picks=3)
    label_all(store, 3)
    folder = tmp_path / "first"
    pool_file(store, 0).rename(tmp_path / "spare.png")
    pool_file(store, 1).rename(pool_file(store, 0))
    (tmp_path / "spare.png").rename(pool_file(store, 1))
    pool_file(store, 2).rename(folder / "pool" / "moved.png")
    shutil.copy(pool_file(store, 4), folder / "pool" / "copy.png")
    pool_file(store, 4).unlink()
    draw(folder / "pool" / "new.png", 1, 77)
    (folder / "validation" / "cat" / "0.png").rename(folder / "validation" / "owl" / "9.png")
    (tmp_path / "kill.py").write_text(KILL)
    store._connections.own().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ends = []
    for number in range(0, 1_000, 5):
        work = tmp_path / str(number)
        shutil.copytree(folder, work)
        command = [sys.executable, tmp_path / "kill.py", work / "work", str(number)]
        done = forked_processes.run(command, check=False, has_torch=False)
        assert done.returncode in (0, -signal.SIGKILL)
        own = create_store(work / "work", CLASSES)
        init(own)
        assert not verify(own, deep=True)
        ends.append([{**row, "modified": 0} for part in ("pool", "validation") for row in rows_of(own, part)])
        if done.returncode == 0:
            assert len(ends) > 5 and all(end == ends[0] for end in ends)
            return
    raise AssertionError("no run came to its end")


# A slow model: contents by name, on a disk of few names, after any sequence of changes.
POOL = ("a.png", "b.png", "c.png", "d/e.png", "d/f.png")
TRUSTED = ("cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png", "owl/a.png", "dog/sure.png", "cat/sure.png")
PLACES = [f"pool/{name}" for name in POOL] + [f"validation/{name}" for name in TRUSTED]
CHANGES = st.one_of(
    st.tuples(st.just("move"), st.sampled_from(PLACES), st.sampled_from(PLACES)),
    st.tuples(st.just("copy"), st.sampled_from(PLACES), st.sampled_from(PLACES)),
    st.tuples(st.just("swap"), st.sampled_from(PLACES), st.sampled_from(PLACES)),
    st.tuples(st.just("write"), st.sampled_from(PLACES), st.integers(0, 8)),
    st.tuples(st.just("remove"), st.sampled_from(PLACES), st.none()),
    st.tuples(st.just("init"), st.none(), st.none()),
    st.tuples(st.just("ask"), st.none(), st.integers(1, 2)),
)


@cache
def make_contents() -> tuple[bytes, ...]:
    """Images of different sizes, and one file that is none."""
    with TemporaryDirectory() as folder:
        for number in range(8):
            draw(Path(folder) / f"{number}.png", number % 3, number, size=12 + number)
        return *((Path(folder) / f"{number}.png").read_bytes() for number in range(8)), b"no image"


def change(root: Path, kind: str, source: str, target: Any, contents: Sequence[bytes]) -> None:
    one, other = root / source, root / str(target)
    if kind == "write":
        one.write_bytes(contents[target])
    elif kind == "remove":
        one.unlink(missing_ok=True)
    elif one.exists() and kind == "move":
        one.replace(other)
    elif one.exists() and one != other and kind == "copy":
        shutil.copy(one, other)
    elif one.exists() and other.exists() and one != other:
        one.rename(root / "spare")
        other.rename(one)
        (root / "spare").rename(other)


def check_against_the_disk(store: Store, said: dict[str, int], readable: set[str]) -> None:
    root = store.folder.parent
    disk = {
        part: {
            path.relative_to(root / part).as_posix(): fingerprint(path.read_bytes())
            for path in (root / part).rglob("*.png")
        }
        for part in ("pool", "validation")
    }
    rows = {part: rows_of(store, part) for part in disk}
    used = {part: {os.fsdecode(r["path"]): r for r in rows[part] if r["state"] == "ready"} for part in disk}
    with store.reading() as connection:
        asked = {image for (image,) in connection.execute("SELECT image FROM pick")}
    # (c) the validation set is what is in its folders, with the label of the folder.
    trusted = set(disk["validation"].values()) & readable
    assert sorted(r["hash"] for r in used["validation"].values()) == sorted(trusted)
    for path, row in used["validation"].items():
        assert disk["validation"][path] == row["hash"] and row["class"] == CLASSES.index(path.split("/")[0])
    # (a) each image of the pool is used once, but for those in the place of an image that people were asked about.
    replaced = {os.fsdecode(r["path"]) for r in rows["pool"] if r["id"] in asked} - {
        os.fsdecode(r["path"])
        for r in rows["pool"]
        if r["id"] in asked and disk["pool"].get(os.fsdecode(r["path"])) == r["hash"]
    }
    wanted = {hash_ for path, hash_ in disk["pool"].items() if path not in replaced} & readable - trusted
    there = [r["hash"] for path, r in used["pool"].items() if disk["pool"].get(path) == r["hash"]]
    assert sorted(there) == sorted(wanted)
    lost = [r for path, r in used["pool"].items() if disk["pool"].get(path) != r["hash"]]
    assert all(row["id"] in asked and row["hash"] not in disk["pool"].values() for row in lost)
    # (b) each label is on the row of its content, and that is used where the content is in the pool.
    by_id, labels = {row["id"]: row for row in rows["pool"]}, settled(store)
    assert {by_id[image]["hash"]: label for image, label in labels.items()} == said
    for image in labels:
        row = by_id[image]
        assert row["state"] == ("trusted" if row["hash"] in trusted else "ready")
        if row["hash"] in disk["pool"].values():
            assert disk["pool"].get(os.fsdecode(row["path"])) == row["hash"]
    assert not [sentence for sentence in verify(store) if "are missing" not in sentence and "changed" not in sentence]


@given(st.lists(CHANGES, max_size=30))
@example([("write", "validation/cat/sure.png", 8), ("init", None, None), ("ask", None, 2)])
@settings(max_examples=60, deadline=None)
def test_any_changes_leave_what_is_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, Any, Any]]
) -> None:
    contents = make_contents()
    root = tmp_path_factory.mktemp("disk")
    for place in PLACES:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        (root / PLACES[number]).write_bytes(contents[number])
    (root / "validation/cat/sure.png").write_bytes(contents[6])
    (root / "validation/dog/sure.png").write_bytes(contents[7])
    store, said = create_store(root / "work", CLASSES), dict[str, int]()
    readable = {fingerprint(content) for content in contents[:-1]}
    for kind, source, target in [*changes, ("init", None, None)]:
        if kind == "ask":
            said |= ask_and_label(store, target)
        elif kind != "init":
            change(root, kind, source, target, contents)
        elif is_possible(root):
            init(store)
            check_against_the_disk(store, said, readable)
            before = rows_of(store) + rows_of(store, "validation")
            init(store)
            assert rows_of(store) + rows_of(store, "validation") == before
        else:
            with pytest.raises(DataError, match="are the same image in two classes|has no folders with images"):
                init(store)


def is_possible(root: Path) -> bool:
    """Whether there is a validation set, and no image of it is in two classes."""
    seen: dict[bytes, set[str]] = {}
    for path in (root / "validation").rglob("*.png"):
        seen.setdefault(path.read_bytes(), set()).add(path.parent.name)
    return bool(seen) and all(len(names) == 1 or content == b"no image" for content, names in seen.items())


def ask_and_label(store: Store, count: int) -> dict[str, int]:
    """Labels by content, of images that a new round asks about."""
    with store.reading() as connection:
        usable = connection.execute(
            "SELECT count(*) FROM image WHERE part = 'pool' AND state = 'ready' AND id NOT IN (SELECT image FROM pick)"
        ).fetchone()[0]
        trusted = connection.execute(
            "SELECT count(*) FROM image WHERE part = 'validation' AND state = 'ready'"
        ).fetchone()[0]
    if not usable or not trusted:
        return {}
    add_round(store, count)
    by_id, said = {row["id"]: row["hash"] for row in rows_of(store)}, dict[str, int]()
    for number, task in enumerate(take(store, "ann", 9)):
        answer(store, task.image, "ann", "class", number % 3, f"ticket {task.image}")
        said[by_id[task.image]] = number % 3
    return said
