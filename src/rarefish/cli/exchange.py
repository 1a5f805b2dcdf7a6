"""The commands `rarefish export`, `rarefish import` and `rarefish studio`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import json_option, reject_unused, tell, workspace_argument
from rarefish.errors import ArgumentError
from rarefish.workspace.store import Store

if TYPE_CHECKING:
    from rarefish.exchange.importer import Imported

FORMS = ("csv", "imagefolder", "coco", "cvat", "label-studio", "fiftyone", "huggingface")
"""Repeated here because importing the table of formats would slow down `rarefish --help`; a test compares the two."""
MAX_LINES = 5
"""Maximum number of messages of one kind to print; the rest are only counted."""


@click.command(name="export")
@workspace_argument
@click.option(
    "--what",
    type=click.Choice(["picks", "labels"]),
    default="labels",
    show_default=True,
    help="Export all images chosen so far, or only the labeled ones.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMS), default="csv", show_default=True, help="Format of the export."
)
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="File or, for some formats, folder to write."
)
@click.option(
    "--url-prefix", default="", help="For label-studio: URL where the images are served. [default: local files]"
)
@json_option
def export_(store: Store, what: str, form: str, output: Path, url_prefix: str, as_json: bool) -> None:
    """Export the chosen images or the labels for another tool.

    \b
    Example:
      rarefish export work --format coco --output labels.json
      rarefish export work --what picks --format label-studio --output tasks
    """
    if form != "label-studio":
        reject_unused(["url_prefix"], f"The format {form} contains no URLs")
    from rarefish.exchange.exporter import export

    left_out: list[str] = []
    path = str(export(store, what, form, output, url_prefix=url_prefix, tell=left_out.append).resolve())
    result = {"path": path, "format": form, "what": what, "left_out": left_out}
    tell(as_json, result, "\n".join([path, *first_of("left out", left_out)]))


@click.command(name="import")
@workspace_argument
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMS), default="csv", show_default=True, help="Format of SOURCE.")
@click.option("--who", help="Name of the annotator, if the file does not contain it. [default: imported]")
@json_option
def import_(store: Store, source: Path, form: str, who: str | None, as_json: bool) -> None:
    """Import labels from another tool.

    SOURCE is a file or a folder. Importing the same labels again adds nothing.

    \b
    Example:
      rarefish import work annotations.json --format label-studio
    """
    from rarefish.exchange.importer import import_labels

    found = import_labels(store, form, source, who)
    tell(as_json, asdict(found), import_message(found))


def import_message(found: "Imported") -> str:
    """Returns the text for an import: how many labels were new or already there, and which were not imported."""
    lines = [f"Labels: {found.count} new, {found.already} already there."]
    lines += first_of("left out", found.unknown)
    lines += first_of("not imported because of a later answer", found.conflicts)
    return "\n".join(lines)


def first_of(what: str, messages: Sequence[str]) -> list[str]:
    """Returns a line with the number of messages, followed by the first few; nothing if there are none."""
    if not messages:
        return []
    more = [f"  … and {len(messages) - MAX_LINES} more"] if len(messages) > MAX_LINES else []
    return [f"{len(messages)} {what}:", *(f"  {sentence}" for sentence in messages[:MAX_LINES]), *more]


@click.group()
def studio() -> None:
    """Exchange images and labels with a Label Studio server.

    Uploads images and fetches annotations through its API.

    \b
    Example:
      rarefish studio push work --url http://localhost:8080
    """


def studio_options(command: Any) -> Any:
    """Adds the options --url, --token and --project."""
    for option in (
        click.option("--url", required=True, help="URL of the Label Studio server."),
        click.option("--token", help="API token. [default: the environment variable LABEL_STUDIO_TOKEN]"),
        click.option("--project", type=int, help="Number of the project. [default: the one last used on this server]"),
    ):
        command = option(command)
    return command


@studio.command()
@workspace_argument
@studio_options
@click.option(
    "--new", "is_new", is_flag=True, help="Create a new project. [default: only on the first push to a server]"
)
@json_option
def push(store: Store, url: str, token: str | None, project: int | None, is_new: bool, as_json: bool) -> None:
    """Upload the images that need labels, with predictions.

    \b
    Example:
      rarefish studio push work --url http://localhost:8080
    """
    from rarefish.exchange import label_studio_sync

    if is_new and project is not None:
        raise ArgumentError(
            f"--new creates a project and --project {project} names an existing one. Give only one of them."
        )
    if project is None and not is_new:
        project = label_studio_sync.last_project(store, url)
    sent = label_studio_sync.push(store, url, token or os.environ.get("LABEL_STUDIO_TOKEN", ""), project)
    line = f"Images: {sent.sent} sent, {sent.already} already there: {sent.url} (project {sent.project})"
    tell(as_json, asdict(sent), "\n".join([line, *first_of("left out", sent.left_out)]))


@studio.command()
@workspace_argument
@studio_options
@click.option(
    "--who",
    default="label-studio",
    show_default=True,
    help="Name of the annotator, if Label Studio does not provide it.",
)
@json_option
def pull(store: Store, url: str, token: str | None, project: int | None, who: str, as_json: bool) -> None:
    """Import the annotations made so far.

    Pulling again imports only what is new.

    \b
    Example:
      rarefish studio pull work --url http://localhost:8080
    """
    from rarefish.exchange import label_studio_sync

    if project is None:
        project = label_studio_sync.last_project(store, url)
    if project is None:
        raise ArgumentError(
            f"No project is given, and nothing has been pushed to {url} yet. Give --project NUMBER; the number is part "
            "of the project's URL in Label Studio."
        )
    found = label_studio_sync.pull(store, url, token or os.environ.get("LABEL_STUDIO_TOKEN", ""), project, who)
    tell(as_json, asdict(found), import_message(found))
