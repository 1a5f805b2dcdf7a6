"""The commit of the code, in checkouts made for the test."""

import subprocess
from pathlib import Path

import pytest

from rarefish.experiments.source_commit import commit_of


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *author, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in the source folder of a checkout with one commit."""
    package = tmp_path / "checkout" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(package.parents[1], "init", "--quiet")
    git(package, "add", "__init__.py")
    git(package, "commit", "--quiet", "--message", "first")
    return package


def test_the_commit_of_a_checkout(package: Path) -> None:
    assert commit_of(package) == git(package, "rev-parse", "--short", "HEAD") != ""
    (package.parent / "notes.txt").write_text("not part of the package")
    assert not commit_of(package).endswith("+")


@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_modified_code_has_a_plus(package: Path, name: str) -> None:
    (package / name).write_text("changed = True")
    assert commit_of(package) == git(package, "rev-parse", "--short", "HEAD") + "+"


def test_an_installed_copy_has_no_commit(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither outside of any checkout, nor in a virtual environment inside of another one, nor without git."""
    for place in (tmp_path / "elsewhere", package.parents[1] / ".venv" / "package"):
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("")
        assert commit_of(place) == ""
    monkeypatch.setenv("PATH", "")
    assert commit_of(package) == ""
