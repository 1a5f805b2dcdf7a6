"""Options and output helpers that several commands share."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rarefish.errors import ArgumentError, printable_lines
from rarefish.workspace.store import Store, open_store

Command = Callable[..., Any]


def workspace_argument(command: Command) -> Command:
    """Adds the argument WORKSPACE, an existing workspace, which the command gets as an open `store`."""
    return click.argument("store", metavar="WORKSPACE", type=click.Path(path_type=Path), callback=_open)(command)


def _open(_: click.Context, __: click.Parameter, folder: Path) -> Store:
    return closed_at_end(open_store(folder))


def closed_at_end(store: Store) -> Store:
    """Returns the same store, which is closed when the command ends; rarefish.db then holds all labels."""
    click.get_current_context().call_on_close(store.close)
    return store


def json_option(command: Command) -> Command:
    """Adds the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)


def machine_options(command: Command) -> Command:
    """Adds the options --device, --workers and --batch-size."""
    for option in (
        click.option(
            "--device", default="auto", show_default=True, help="cpu, cuda, or auto: cuda if available, otherwise cpu."
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=0),
            default=2,
            show_default=True,
            help="Worker processes that decode images.",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            help="Images per batch. [default: 32 for training, otherwise 256]",
        ),
    ):
        command = option(command)
    return command


def trust_option(command: Command) -> Command:
    """Adds the option --trust."""
    return click.option(
        "--trust", is_flag=True, help="Allow running the Python file or module that the workspace names as its model."
    )(command)


def allow_model(store: Store, trust: bool) -> None:
    """Remembers, if `trust` is set, that the workspace may run the model that it names now."""
    address = store.settings().get("model")
    if trust and address:
        from rarefish.workspace.trust import trust_model

        trust_model(store, address)


def make_running(options: dict[str, Any]) -> Any:
    """Returns the workspace actions' `Running` made of those options that were given."""
    from rarefish.workspace.actions import Running

    names = ("device", "workers", "batch_size", "shard")
    return Running(**{name: options[name] for name in names if options.get(name) is not None})


def reject_unused(names: Iterable[str], reason: str) -> None:
    """Raises an ArgumentError if one of these parameters was given to the current command, which would ignore it."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    ]
    if given:
        raise ArgumentError(f"{reason}; leave out {', '.join(given)}.")


def tell(as_json: bool, found: dict[str, Any], words: str) -> None:
    """Prints the result on standard output: as JSON for a program, or as text."""
    click.echo(to_json(found) if as_json else printable_lines(words))


def to_json(found: dict[str, Any]) -> str:
    """Returns one line of JSON; characters that a terminal would interpret are escaped as in JSON strings."""
    text = json.dumps(found, ensure_ascii=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names in a text that separates them by commas."""
    return tuple(name.strip() for name in text.split(","))


def parse_size(text: str) -> tuple[int, int]:
    """Returns (height, width) from a text such as 224x224, or 224 for a square."""
    height, _, width = text.partition("x")
    if not (height.isdigit() and (width or height).isdigit() and int(height) and int(width or height)):
        raise ArgumentError(f"A size is HEIGHTxWIDTH, such as 224x224, not {text!r}.")
    return int(height), int(width or height)
