"""Writes the pages that are made from the code: the command-line reference and the README's file tree."""

import ast
from pathlib import Path

import click

from rarefish.cli.main import cli

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "rarefish"
METHOD = [
    "descriptors",
    "features",
    "kernels",
    "pseudo_labels/rules",
    "pseudo_labels/posterior",
    "fisher",
    "centers",
    "matching",
    "selection",
]
START, END = "<!-- tree: made by tools/make_pages.py -->", "<!-- end of tree -->"


def cli_page() -> str:
    """The help of every command, one section each."""
    parts = ["# Command line\n\nMade by `make docs` from the commands themselves.\n"]

    def add(command: click.Command, name: str, parent: click.Context | None) -> None:
        settings = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
        context = click.Context(command, info_name=name, parent=parent, **settings)
        parts.append(f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```\n")
        for child_name, child in sorted(getattr(command, "commands", {}).items()):
            add(child, child_name, context)

    add(cli, "rarefish", None)
    return "\n".join(parts)


def tree() -> str:
    """Every file of the package with the first line of its docstring; the method first, in reading order."""
    method = [SOURCE / f"{name}.py" for name in METHOD]
    around = [p for p in sorted(SOURCE.rglob("*.py")) if p not in method and p.parent == SOURCE]
    inside = [p for p in sorted(SOURCE.rglob("*.py")) if p.parent != SOURCE]
    lines = ["src/rarefish/", *map(_line, method), "  -- around it", *map(_line, around), *map(_line, inside)]
    return "\n".join(["```text", *lines, "```"])


def readme() -> str:
    """The README with its tree made anew."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, rest = text.split(START)
    return f"{before}{START}\n{tree()}\n{END}{rest.split(END)[1]}"


def _line(path: Path) -> str:
    says = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()[0]
    return f"  {path.relative_to(SOURCE).as_posix():<31} {says}"


def main() -> None:
    (ROOT / "docs/reference/cli.md").write_text(cli_page(), encoding="utf-8")
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
