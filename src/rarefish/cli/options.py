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
    """Adds the argument WORKSPACE, an existing workspace that is passed to the command as an open `store`."""
    return click.argument("store", metavar="WORKSPACE", type=click.Path(path_type=Path), callback=_open)(command)


def _open(_: click.Context, __: click.Parameter, folder: Path) -> Store:
    return closed_at_end(open_store(folder))


def closed_at_end(store: Store) -> Store:
    """Returns the same store and closes it when the command ends; rarefish.db then contains all labels."""
    click.get_current_context().call_on_close(store.close)
    return store


def json_option(command: Command) -> Command:
    """Adds the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)


MODEL_HELP = (
    "efficientnet-lite0 (pretrained), lenet, resnet10, resnet18, FILE.py:FUNCTION, module:function, timm:NAME, "
    "torchvision:NAME or transformers:FOLDER."
)
"""Help text of the option --model."""


def weights_option(help: str = "File with weights (.pt or .safetensors).") -> Callable[[Command], Command]:
    """Adds the option --weights."""
    return click.option("--weights", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=help)


def workers_option(command: Command) -> Command:
    """Adds the option --workers."""
    return click.option(
        "--workers",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        help="Number of worker processes that decode images.",
    )(command)


def machine_options(batch_size: str) -> Callable[[Command], Command]:
    """Adds the options --device, --workers and --batch-size; `batch_size` is the default that the help text shows."""
    device_option = click.option(
        "--device", default="auto", show_default=True, help="cpu, cuda, or auto: cuda if available, otherwise cpu."
    )
    batch_size_option = click.option(
        "--batch-size", type=click.IntRange(min=1), help=f"Number of images per batch. [default: {batch_size}]"
    )
    return lambda command: batch_size_option(workers_option(device_option(command)))


def near_copies_option(command: Command) -> Command:
    """Adds the option --allow-near-copies."""
    return click.option(
        "--allow-near-copies",
        is_flag=True,
        help="With embeddings, also select near-copies of one another, of earlier selections and of trusted images.",
    )(command)


def trust_option(command: Command) -> Command:
    """Adds the option --trust."""
    return click.option(
        "--trust", is_flag=True, help="Allow the workspace to run the Python file or module that it names as its model."
    )(command)


def allow_model(store: Store, trust: bool) -> None:
    """If `trust` is set, allows the workspace to run the model that it currently names."""
    address = store.settings().get("model")
    if trust and address:
        from rarefish.workspace.trust import trust_model

        trust_model(store, address)


def make_running(options: dict[str, Any]) -> Any:
    """Returns a `Running` for the workspace actions, made from the options that were given."""
    from rarefish.workspace.running import Running

    names = ("device", "workers", "batch_size", "shard")
    return Running(**{name: options[name] for name in names if options.get(name) is not None})


def reject_unused(names: Iterable[str], reason: str) -> None:
    """Raises an ArgumentError if the user gave one of these parameters, which the current command would ignore."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    ]
    if given:
        raise ArgumentError(f"{reason}. Leave out {', '.join(given)}.")


def tell(as_json: bool, found: dict[str, Any], words: str) -> None:
    """Prints the result to standard output, as JSON or as text."""
    click.echo(to_json(found) if as_json else printable_lines(words))


def to_json(found: dict[str, Any]) -> str:
    """Returns one line of JSON in which characters that a terminal would interpret are escaped."""
    text = json.dumps(found, ensure_ascii=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names in a comma-separated text."""
    return tuple(name.strip() for name in text.split(","))


def parse_size(text: str) -> tuple[int, int]:
    """Returns (height, width) from a text such as 224x224, or 224 for a square."""
    height, _, width = text.partition("x")
    if not (height.isdigit() and (width or height).isdigit() and int(height) and int(width or height)):
        raise ArgumentError(f"Invalid size {text!r}. Give HEIGHTxWIDTH, such as 224x224.")
    return int(height), int(width or height)
