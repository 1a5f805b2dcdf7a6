"""What a workspace gives to other tools and takes from them."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import json_option, tell, workspace_argument
from rarefish.errors import ArgumentError
from rarefish.workspace.store import Store

if TYPE_CHECKING:
    from rarefish.exchange.import_labels import Imported

FORMS = ("csv", "imagefolder", "coco", "cvat", "label-studio", "fiftyone", "huggingface")
"""Here once more, since looking them up would make `rarefish --help` wait for them; a test compares."""
FEW = 5
"""Sentences of a kind that are printed."""


@click.command(name="export")
@workspace_argument
@click.option("--what", type=click.Choice(["picks", "labels"]), default="labels", show_default=True)
@click.option("--format", "form", type=click.Choice(FORMS), default="csv", show_default=True)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="A file or, for some formats, a folder.")
@click.option("--url-prefix", default="", help="label-studio: where the images are served. [default: local files]")
@json_option
def export_(store: Store, what: str, form: str, output: Path, url_prefix: str, as_json: bool) -> None:
    """Write picks or labels for another tool.

    \b
    Example:
      rarefish export work --format coco --output labels.json
      rarefish export work --what picks --format label-studio --output tasks.json
    """
    from rarefish.exchange.export import export

    left_out: list[str] = []
    path = str(export(store, what, form, output, url_prefix=url_prefix, tell=left_out.append).resolve())
    found = {"path": path, "format": form, "what": what, "left_out": left_out}
    tell(as_json, found, "\n".join([path, *some_of("left out", left_out)]))


@click.command(name="import")
@workspace_argument
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMS), default="csv", show_default=True)
@click.option("--who", help="Whose labels they are, where the file does not say. [default: imported]")
@json_option
def import_(store: Store, source: Path, form: str, who: str | None, as_json: bool) -> None:
    """Take labels in from another tool; the same file twice adds nothing.

    \b
    Example:
      rarefish import work annotations.json --format label-studio
    """
    from rarefish.exchange.import_labels import import_labels

    found = import_labels(store, form, source, who)
    tell(as_json, asdict(found), words_of(found))


def words_of(found: "Imported") -> str:
    """What came of a file, in some lines."""
    lines = [f"{found.count} labels are new, {found.already} were there already."]
    lines += some_of("left out", found.unknown)
    lines += some_of("not taken, for a later answer stands", found.conflicts)
    return "\n".join(lines)


def some_of(what: str, said: Sequence[str]) -> list[str]:
    """How many sentences there are, and some of them; nothing where there are none."""
    if not said:
        return []
    more = [f"  … and {len(said) - FEW} more"] if len(said) > FEW else []
    return [f"{len(said)} {what}:", *(f"  {sentence}" for sentence in said[:FEW]), *more]


@click.group()
def studio() -> None:
    """Label with a Label Studio server, through its API.

    \b
    Example:
      rarefish studio push work --url http://localhost:8080
    """


def studio_options(command: Any) -> Any:
    for option in (
        click.option("--url", required=True, help="Of the server."),
        click.option("--token", help="[default: the variable LABEL_STUDIO_TOKEN]"),
        click.option("--project", type=int, help="Its number. [default: the last one on that server]"),
    ):
        command = option(command)
    return command


@studio.command()
@workspace_argument
@studio_options
@click.option("--new", "is_new", is_flag=True, help="Make another project. [default: only where there is none yet]")
@json_option
def push(store: Store, url: str, token: str | None, project: int | None, is_new: bool, as_json: bool) -> None:
    """Send the images that wait for labels, with the model's guesses.

    \b
    Example:
      rarefish studio push work --url http://localhost:8080
    """
    from rarefish.exchange import label_studio_sync as server

    if is_new and project is not None:
        raise ArgumentError(f"--new makes a project, --project {project} takes one that is there. Leave one out.")
    if project is None and not is_new:
        project = server.last_project(store, url)
    sent = server.push(store, url, token or os.environ.get("LABEL_STUDIO_TOKEN", ""), project)
    words = f"{sent.sent} images sent, {sent.already} were there already: {sent.url} (project {sent.project})"
    tell(as_json, asdict(sent), "\n".join([words, *some_of("left out", sent.left_out)]))


@studio.command()
@workspace_argument
@studio_options
@click.option(
    "--who", default="label-studio", show_default=True, help="Whose labels they are, where that is not known."
)
@json_option
def pull(store: Store, url: str, token: str | None, project: int | None, who: str, as_json: bool) -> None:
    """Take in what was annotated so far.

    \b
    Example:
      rarefish studio pull work --url http://localhost:8080
    """
    from rarefish.exchange import label_studio_sync as server

    if project is None:
        project = server.last_project(store, url)
    if project is None:
        raise ArgumentError(
            f"Which project? Nothing was pushed to {url}. Give --project NUMBER, as its address in Label Studio has it."
        )
    found = server.pull(store, url, token or os.environ.get("LABEL_STUDIO_TOKEN", ""), project, who)
    tell(as_json, asdict(found), words_of(found))
