"""What several commands share: the workspace, `--json`, and how much of the machine is used."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rarefish.errors import ArgumentError, printable_lines
from rarefish.workspace.store import Store, open_store

Command = Callable[..., Any]


def workspace_argument(command: Command) -> Command:
    """WORKSPACE, as a store that is there."""
    return click.argument("store", metavar="WORKSPACE", type=click.Path(path_type=Path), callback=_open)(command)


def _open(_: click.Context, __: click.Parameter, folder: Path) -> Store:
    return closed_at_end(open_store(folder))


def closed_at_end(store: Store) -> Store:
    """The same store, closed when the command ends: all labels are in rarefish.db then."""
    click.get_current_context().call_on_close(store.close)
    return store


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")(command)


def machine_options(command: Command) -> Command:
    for option in (
        click.option(
            "--device", default="auto", show_default=True, help="cpu, cuda, or auto: cuda where there is one."
        ),
        click.option(
            "--workers", type=click.IntRange(min=0), default=2, show_default=True, help="Processes that decode."
        ),
        click.option("--batch-size", type=click.IntRange(min=1), help="Images at a time. [default: what suits most]"),
    ):
        command = option(command)
    return command


def trust_option(command: Command) -> Command:
    return click.option(
        "--trust", is_flag=True, help="Allow the Python file or module that the workspace names as its model."
    )(command)


def allow_model(store: Store, trust: bool) -> None:
    """With --trust, remembers that the workspace may run the model it names now."""
    address = store.settings().get("model")
    if trust and address:
        from rarefish.workspace.trust import trust_model

        trust_model(store, address)


def tell(as_json: bool, found: dict[str, Any], words: str) -> None:
    """The outcome on standard output, for a program or for a person."""
    click.echo(to_json(found) if as_json else printable_lines(words))


def to_json(found: dict[str, Any]) -> str:
    """One line of JSON; in its strings everything a terminal could trip over is escaped, as JSON does it."""
    text = json.dumps(found, ensure_ascii=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def is_watched() -> bool:
    return sys.stderr.isatty()


def parse_size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    if not (height.isdigit() and (width or height).isdigit() and int(height) and int(width or height)):
        raise ArgumentError(f"A size is HEIGHTxWIDTH, such as 224x224, not {text!r}.")
    return int(height), int(width or height)
