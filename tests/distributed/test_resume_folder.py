"""The folder of a resumable run: what is deleted, and what is never touched."""

from pathlib import Path

import pytest

from rarefish.distributed.resume_folder import MARKER, ResumeFolder
from rarefish.errors import ArgumentError

SHARD = "0123456789abcdef-10_90-0-of-3.pt"


def test_it_is_made_filled_and_removed(tmp_path: Path) -> None:
    folder = ResumeFolder(tmp_path / "out" / "resume")
    folder.check()
    assert folder.read(SHARD) is None and not folder.path.exists()
    folder.write(SHARD, b"one")
    folder.write("plan.pt", b"plan")
    assert folder.read(SHARD) == b"one" and (folder.path / MARKER).is_file()
    folder.check()
    folder.clear()
    assert [path.name for path in folder.path.iterdir()] == [MARKER]
    folder.write(SHARD, b"two")
    (folder.path / f"{SHARD}.123-00ff.part").write_bytes(b"of a killed process")
    folder.remove()
    assert not folder.path.exists()
    folder.remove()


def test_a_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = ResumeFolder(tmp_path / "shards")
    folder.path.mkdir()
    folder.check()  # an empty one may be what a killed process left
    for name in (SHARD, "plan.pt", "cat.pt"):
        (folder.path / name).write_text("mine")
    for act in (folder.check, lambda: folder.write("plan.pt", b"plan")):
        with pytest.raises(
            ArgumentError, match=r"shards was not created by rarefish: it has no file \.made-by-rarefish"
        ):
            act()
    folder.clear()
    folder.remove()
    assert sorted(path.read_text() for path in folder.path.iterdir()) == ["mine"] * 3
    with pytest.raises(ArgumentError, match="cat.pt is not a folder"):
        ResumeFolder(folder.path / "cat.pt").check()


def test_files_with_other_names_stay(tmp_path: Path) -> None:
    folder = ResumeFolder(tmp_path / "resume")
    folder.write(SHARD, b"one")
    others = ("weights.pt", "cat.png", "0123456789abcdef.pt", f"my {SHARD}", "plan.pt.bak")
    for name in others:
        (folder.path / name).write_text("mine")
    (folder.path / "plan.pt").mkdir()
    folder.remove()
    assert sorted(path.name for path in folder.path.iterdir()) == sorted([*others, "plan.pt", MARKER])


def test_links_are_never_followed(tmp_path: Path) -> None:
    theirs = ResumeFolder(tmp_path / "theirs")
    theirs.write(SHARD, b"one")
    (tmp_path / "link").symlink_to(theirs.path)
    link = ResumeFolder(tmp_path / "link")
    for act in (link.check, lambda: link.write("plan.pt", b"plan")):
        with pytest.raises(ArgumentError, match="link is a symbolic link"):
            act()
    link.clear()
    link.remove()
    assert theirs.read(SHARD) == b"one" and link.path.is_symlink()
    target = tmp_path / "precious"
    target.write_text("mine")
    (theirs.path / "plan.pt").symlink_to(target)
    assert theirs.read("plan.pt") is None
    theirs.write("plan.pt", b"plan")  # takes the place of the link, not of what it points to
    assert target.read_text() == "mine" and theirs.read("plan.pt") == b"plan"
