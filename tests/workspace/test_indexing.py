"""Folders and manifests taken in: once, with reasons for what is left out, whatever the files are called."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner
from PIL import Image

from rarefish.cli.main import cli
from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.errors import ArgumentError, DataError, WorkspaceError
from rarefish.workspace.indexing import index, read_image_file, show
from rarefish.workspace.store import create_store, open_store
from rarefish.workspace.verification import verify
from tests.workspaces import CLASSES, draw, make_images, make_workspace


def test_what_is_left_out_and_why(tmp_path: Path) -> None:
    make_images(tmp_path, pool=4, trusted=1)
    pool = tmp_path / "pool"
    (pool / "copy.png").write_bytes((pool / "image 00001.png").read_bytes())
    (pool / "leak.png").write_bytes((tmp_path / "validation" / "cat" / "0.png").read_bytes())
    (pool / "cut.png").write_bytes((pool / "image 00002.png").read_bytes()[:200])
    (pool / "empty.jpg").touch()
    (pool / "note.txt").write_text("not an image")
    (pool / "folder.png").mkdir()
    store = create_store(tmp_path / "work", CLASSES)
    index(store, "validation", *list_trusted(tmp_path / "validation"), shown=False)
    found = index(store, "pool", *list_pool(pool), shown=False)
    assert found.taken == 4 and {state: count for state, (count, _) in found.left_out.items()} == {
        "duplicate": 1,
        "trusted": 1,
        "unreadable": 2,
    }
    assert found.left_out["trusted"][1] == ("leak.png: the same image is in the validation set",)
    assert "image 00001.png: the same image as copy.png" in found.left_out["duplicate"][1]
    again = index(store, "pool", *list_pool(pool), shown=False)
    assert again.new == 0 and again.taken == 4
    draw(pool / "z.png", 1, 77)
    assert index(store, "pool", *list_pool(pool), shown=False).new == 1 and not verify(store)


ODD = [b"with space.png", b"new\nline.png", b"\xff\xfe not utf-8.png", b"quote'\".png", "ünï\u202e.png".encode()]


def test_odd_names(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    for number, name in enumerate(ODD):
        draw(tmp_path / "plain.png", number % 3, number)
        pool.mkdir(exist_ok=True)
        os.rename(tmp_path / "plain.png", os.path.join(os.fsencode(pool), name))
    store = create_store(tmp_path / "work", CLASSES)
    assert index(store, "pool", *list_pool(pool), shown=False).taken == len(ODD)
    with store.reading() as connection:
        names = [bytes(path) for (path,) in connection.execute("SELECT path FROM image")]
    assert sorted(names) == sorted(ODD) and all(show(name).isprintable() for name in names)
    assert not verify(store, deep=True)


def test_manifests(tmp_path: Path) -> None:
    make_images(tmp_path, pool=2, trusted=1)
    (tmp_path / "pool.csv").write_text("path\npool/image 00000.png\npool/image 00001.png\npool/none.png\n")
    (tmp_path / "trusted.csv").write_text("path,label\nvalidation/cat/0.png,cat\nvalidation/dog/0.png,dog\n")
    store = create_store(tmp_path / "work", CLASSES)
    index(store, "validation", *list_trusted(tmp_path / "trusted.csv"), shown=False)
    found = index(store, "pool", *list_pool(tmp_path / "pool.csv"), shown=False)
    assert found.taken == 2 and "No such file" in found.left_out["unreadable"][1][0]
    with store.reading() as connection:
        rows = connection.execute("SELECT class FROM image WHERE part = 'validation'").fetchall()
    assert [row["class"] for row in rows] == [0, 1]
    with pytest.raises(DataError, match="has the columns path, but needs path and label"):
        list_trusted(tmp_path / "pool.csv")
    with pytest.raises(DataError, match="nowhere.csv does not exist"):
        list_pool(tmp_path / "nowhere.csv")


def test_classes_that_were_not_named_are_refused_before_any_file_is_read(tmp_path: Path) -> None:
    make_images(tmp_path, pool=1, trusted=1)
    store = create_store(tmp_path / "work", ("cat", "dog"))
    with pytest.raises(ArgumentError, match="unknown classes: owl"):
        index(store, "validation", *list_trusted(tmp_path / "validation"), shown=False)


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1)
    touched, changed, gone = (tmp_path / "pool" / f"image {n:05d}.png" for n in range(3))
    os.utime(touched, ns=(1, 1))
    draw(changed, 2, 999)
    gone.unlink()
    said = " ".join(verify(store))
    assert "1 images are missing, such as image 00002.png" in said
    assert "1 images have changed since they were indexed, such as image 00001.png" in said and "00000" not in said


def make_black(path: Path, size: int) -> None:
    """A whole PNG with one bit per pixel; its data are the same compressed rows again and again."""
    rows, again = bytes(1_000 * (1 + size // 8)), size // 1_000
    deflate, checksum = zlib.compressobj(wbits=-15), 1
    piece = deflate.compress(rows) + deflate.flush(zlib.Z_FULL_FLUSH)
    for _ in range(again):
        checksum = zlib.adler32(rows, checksum)
    data = b"\x78\x9c" + piece * again + deflate.flush() + struct.pack(">I", checksum)
    chunks = ((b"IHDR", struct.pack(">II5B", size, size, 1, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b""))
    framed = (struct.pack(">I", len(a)) + kind + a + struct.pack(">I", zlib.crc32(kind + a)) for kind, a in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(framed))


def test_a_huge_image_is_refused_by_its_header(tmp_path: Path) -> None:
    make_black(tmp_path / "small.png", 1_000)
    with Image.open(tmp_path / "small.png") as small:
        assert small.mode == "1" and small.getbbox() is None and small.size == (1_000, 1_000)
    make_black(tmp_path / "bomb.png", 60_000)
    began = time.thread_time()
    found = read_image_file(os.fsencode(tmp_path / "bomb.png"))
    assert found.problem and not found.width and time.thread_time() - began < 5


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    make_images(tmp_path, pool=1_200, trusted=1)
    create_store(tmp_path / "work", CLASSES)
    script = (
        "import sys; from pathlib import Path; from rarefish.workspace.indexing import index\n"
        "from rarefish.data.file_listing import list_pool\n"
        "from rarefish.workspace.store import open_store\n"
        "if __name__ == '__main__':\n"
        "    index(open_store(Path(sys.argv[1])), 'pool', *list_pool(Path(sys.argv[2])), shown=False)"
    )
    (tmp_path / "go.py").write_text(script)
    process = subprocess.Popen([sys.executable, tmp_path / "go.py", tmp_path / "work", tmp_path / "pool"])
    store = open_store(tmp_path / "work")

    def count() -> int:
        with store.reading() as connection:
            return connection.execute("SELECT count(*) FROM image").fetchone()[0]

    while process.poll() is None and not count():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < count() <= 1_200 and not verify(store)
    found = index(store, "pool", *list_pool(tmp_path / "pool"), shown=False)
    assert found.taken == count() == 1_200


def children_of(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after_name = path.read_text().rpartition(")")[2].split()
            found += [int(path.parent.name)] if int(after_name[1]) == process else []
    return found


def test_a_killed_reader_is_one_sentence_and_the_next_run_goes_on(tmp_path: Path) -> None:
    make_images(tmp_path, pool=300, trusted=1)
    store = create_store(tmp_path / "work", CLASSES)
    forkserver.ensure_running()
    parent = forkserver._forkserver._forkserver_pid  # pyright: ignore[reportAttributeAccessIssue]

    def kill_the_first() -> None:
        while not (readers := set(children_of(parent)) - before):
            time.sleep(0.001)
        os.kill(readers.pop(), signal.SIGKILL)

    before = set(children_of(parent))
    killer = Thread(target=kill_the_first)
    killer.start()
    with pytest.raises(WorkspaceError, match="reads images was killed.*Run the same command again, with --jobs 1"):
        index(store, "pool", *list_pool(tmp_path / "pool"), jobs=2, shown=False)
    killer.join()
    assert index(store, "pool", *list_pool(tmp_path / "pool"), jobs=2, shown=False).taken == 300


def test_a_file_that_was_mended_or_changed_is_taken_in_again(tmp_path: Path) -> None:
    make_images(tmp_path, pool=3, trusted=1)
    bad = tmp_path / "pool" / "bad.png"
    bad.write_bytes(b"no image")
    store = create_store(tmp_path / "work", CLASSES)
    assert index(store, "pool", *list_pool(tmp_path / "pool"), shown=False).taken == 3
    draw(bad, 1, 77)
    draw(tmp_path / "pool" / "image 00000.png", 2, 78)
    again = index(store, "pool", *list_pool(tmp_path / "pool"), shown=False)
    assert again.taken == 4 and again.new == 2 and not verify(store)
    bad.unlink()
    gone = index(store, "pool", *list_pool(tmp_path / "pool"), shown=False)
    assert gone.taken == 3 and gone.left_out["unreadable"][1] == ("bad.png: no longer exists",) and not verify(store)


def test_a_moved_folder_is_found_and_another_one_refused(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=4, trusted=1)
    (tmp_path / "pool").rename(tmp_path / "moved")
    assert index(store, "pool", *list_pool(tmp_path / "moved"), shown=False).new == 0 and not verify(store)
    for number in range(2):
        draw(tmp_path / "other" / f"image {number:05d}.png", 2, 5 + number, size=30)
    with pytest.raises(WorkspaceError, match="is another folder"):
        index(store, "pool", *list_pool(tmp_path / "other"), shown=False)
    assert store.settings()["pool_root"].endswith("moved")


def test_a_pool_image_that_becomes_trusted_is_no_longer_used(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=1)
    (tmp_path / "validation" / "cat" / "new.png").write_bytes((tmp_path / "pool" / "image 00000.png").read_bytes())
    index(store, "validation", *list_trusted(tmp_path / "validation"), shown=False)
    with store.reading() as connection:
        states = [row["state"] for row in connection.execute("SELECT state FROM image WHERE part = 'pool' ORDER BY id")]
    assert states == ["trusted", "ready", "ready"] and not verify(store)


def test_one_image_in_two_classes_is_refused(tmp_path: Path) -> None:
    make_images(tmp_path, pool=1, trusted=1)
    (tmp_path / "validation" / "owl" / "x.png").write_bytes((tmp_path / "validation" / "cat" / "0.png").read_bytes())
    store = create_store(tmp_path / "work", CLASSES)
    with pytest.raises(DataError, match="cat/0.png and owl/x.png are the same image in two classes"):
        index(store, "validation", *list_trusted(tmp_path / "validation"), shown=False)


def make_deep(folder: Path) -> None:
    """Folders in folders until their path is longer than the system takes; an image is at the bottom."""
    here = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(17):
            os.mkdir("x" * 250, dir_fd=here)
            inner = os.open("x" * 250, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(os.open("a.png", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    finally:
        os.close(here)


def make_loop(folder: Path) -> None:
    (folder / "more").symlink_to(folder / "more")


def make_link_to_nowhere(folder: Path) -> None:
    (folder / "disk").symlink_to(folder.parent / "not mounted" / "images")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_deep, "x cannot be listed: File name too long"),
        (make_loop, "more cannot be listed: Too many levels of symbolic links"),
        (make_link_to_nowhere, "disk cannot be listed: No such file or directory"),
    ],
)
def test_a_folder_that_cannot_be_listed_stops_init_before_anything_changes(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    store, pool = make_workspace(tmp_path, pool=3, trusted=1), tmp_path / "pool"
    with store.reading() as connection:
        before = [tuple(row) for row in connection.execute("SELECT * FROM image")]
    make(pool)
    (pool / "image 00000.png").unlink()
    command = ["init", str(store.folder), "--pool", str(pool), "--validation", str(tmp_path / "validation")]
    with pytest.raises(DataError, match=f"{why}. Make it readable, or remove it"):
        CliRunner().invoke(cli, command, catch_exceptions=False)
    with store.reading() as connection:
        assert [tuple(row) for row in connection.execute("SELECT * FROM image")] == before
    shutil.rmtree(pool)
