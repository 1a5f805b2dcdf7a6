"""What pages say about names, files and commands is true, and examples in docstrings give what they show."""

import doctest
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from rarefish.cli.main import cli

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
HISTORY = ("CHANGELOG.md", "log.md")
"""Pages that tell of the past."""
PAGES = [page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if page.name not in HISTORY]


def dotted_names() -> Iterator[tuple[str, str]]:
    """(page, name) of every `rarefish.…` that is not a file."""
    for page in PAGES:
        for name in re.findall(r"\brarefish(?:\.[A-Za-z_]\w*)+", page.read_text()):
            if not name.endswith((".db", ".json")):
                yield page.name, name


def commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words after `rarefish`) of every command in a block of code, with continued lines and without comments."""
    for page in PAGES:
        for block in re.findall(r"```(?:sh|bash|console)?\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.search(r"(?:^|-m )rarefish +(.*)", line.strip())
                if found and "…" not in found[1]:
                    yield page.name, shlex.split(found[1], comments=True)


@pytest.mark.parametrize(("page", "name"), sorted(set(dotted_names())))
def test_every_name_is_there(page: str, name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    raise AssertionError(f"{page} names {name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_file_that_is_named_is_there(page: Path) -> None:
    known = {
        path.name
        for folder in ("src", "tests", "tools", "examples", "recipes", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    named = set(re.findall(r"`(?:[\w./]+/)?(\w+\.py)\b", page.read_text())) - {"net.py", "FILE.py", "own.py"}
    assert named <= known


@pytest.mark.parametrize(
    ("page", "words"), list(commands()), ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_every_command_has_the_options_that_are_shown(page: str, words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{page}: there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {"--help", "--version"} | {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, page


def modules_with_examples() -> list[ModuleType]:
    names = (
        path.relative_to(SOURCE).with_suffix("").parts
        for path in SOURCE.rglob("*.py")
        if "\n    >>> " in path.read_text()
    )
    return [importlib.import_module(".".join(name)) for name in names]


def test_examples_in_docstrings_give_what_they_show() -> None:
    found = [doctest.testmod(module) for module in modules_with_examples()]
    assert sum(one.attempted for one in found) >= 3 and not any(one.failed for one in found)
