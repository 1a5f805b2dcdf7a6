"""Send picks to a Label Studio server and fetch annotations from it, with a user's token."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from rarefish.data.image_io import open_picture
from rarefish.errors import ArgumentError, DataError, RarefishError, list_some
from rarefish.exchange.export_items import Item, drop_changed, read_image, read_items
from rarefish.exchange.formats.label_studio import CONTROL, find_answers, other_choices, to_config, to_task
from rarefish.exchange.importer import Imported, import_parsed_labels
from rarefish.exchange.label_parsing import read_own_fields, require, require_objects
from rarefish.exchange.label_studio_api import Server, call
from rarefish.exchange.safe_names import to_file_name
from rarefish.workspace.indexing import show
from rarefish.workspace.store import Store

BROWSER_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"}
"""Suffixes of images that Label Studio accepts and browsers can show; other images are sent as PNG."""
MAX_FILES, MAX_UPLOAD_BYTES = 50, 50 << 20
"""Limits per request; Label Studio accepts 100 files and 250 MB."""


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    project: int
    url: str
    sent: int
    already: int
    """Number of images that the project already had."""
    left_out: tuple[str, ...] = ()
    """One message per image whose file has changed since it was indexed."""


def push(store: Store, url: str, token: str, project: int | None = None) -> Pushed:
    """Uploads the images that still need answers as tasks with predictions.

    The workspace remembers the project as soon as it exists. To continue an interrupted push, pass the number that
    `last_project` returns.

    Args:
        store: The workspace.
        url: URL of the Label Studio server.
        token: A user's legacy or personal token.
        project: Number of the project; None creates a new one.
    """
    server, classes = Server(url, token), store.classes()
    items = [replace(item, answers=()) for item in read_items(store, "picks") if item.is_open]
    if not items:
        raise DataError(f"Every selected image has been answered. Select more: rarefish select {store.folder}")
    items, changed = drop_changed(items)
    if project is None:
        number, present = _create(server, store.folder.resolve().name, classes), set()
    else:
        _check(server, project, classes)
        number, present = project, _images(_tasks(server, project))
    store.set(studio={"url": _normalize(url), "project": number})  # before the images are sent, which may fail halfway
    new = [item for item in items if (item.image, item.hash) not in present]
    _send(server, number, new, classes)
    page = f"{url.rstrip('/')}/projects/{number}/data"
    return Pushed(number, page, len(new), len(items) - len(new), tuple(changed))


def last_project(store: Store, url: str) -> int | None:
    """Returns the number of the project on this server to which the workspace was last pushed, or None."""
    known = store.settings().get("studio", {})
    return known.get("project") if known.get("url") == _normalize(url) else None


def pull(store: Store, url: str, token: str, project: int, who: str) -> Imported:
    """Imports the annotations of a project.

    Annotators are identified by their email address; `who` is the annotator of annotations without one.
    """
    server = Server(url, token)
    tasks = _tasks(server, project)
    users = require_objects(call(server, "/api/users/"), "users")
    people = {user["id"]: str(user["email"]) for user in users if isinstance(user.get("id"), int) and user.get("email")}
    return import_parsed_labels(store, "label-studio", find_answers(tasks, store.classes(), people), who)


def _create(server: Server, name: str, classes: list[str]) -> int:
    body = {"title": f"rarefish {name}"[:50], "label_config": to_config(classes)}
    return _number(call(server, "/api/projects/", body))


def _check(server: Server, project: int, classes: list[str]) -> None:
    """Raises an error if the project cannot store our answers."""
    known = call(server, f"/api/projects/{project}/")
    controls = known.get("parsed_label_config") if isinstance(known, dict) else None
    control = controls.get(CONTROL) if isinstance(controls, dict) else None
    labels = control.get("labels", []) if isinstance(control, dict) else []
    missing = [name for name in [*classes, *other_choices(classes)] if name not in labels]
    if missing:
        raise ArgumentError(
            f"Project {project} has no choices named {CONTROL!r} with {list_some(missing)}. "
            "Use the labeling_config.xml of an export as its labeling setup, or create another project: push --new"
        )


def _send(server: Server, project: int, items: list[Item], classes: list[str]) -> None:
    sent = 0
    try:
        for batch in _batches(items):
            urls = _upload(server, project, batch)
            tasks = [to_task(replace(item, url=urls[item.image]), classes) for item, _, _ in batch]
            call(server, f"/api/projects/{project}/import", tasks)
            sent += len(batch)
    except RarefishError as error:
        raise type(error)(
            f"{error} {sent} of {len(items)} images are in project {project}. Push again to send the rest."
        ) from error


def _tasks(server: Server, project: int) -> list[dict[str, Any]]:
    path = f"/api/projects/{project}/export?exportType=JSON&download_all_tasks=true"
    return require_objects(call(server, path), "tasks")


def _images(tasks: list[dict[str, Any]]) -> set[tuple[int, str]]:
    metas = [task.get("meta") for task in tasks]
    known = [read_own_fields(meta.get("rarefish")) for meta in metas if isinstance(meta, dict)]
    return {(one["image"], one["hash"]) for one in known if one}


def _batches(items: list[Item]) -> Iterator[list[tuple[Item, str, bytes]]]:
    """Yields batches of images with file names and bytes that Label Studio accepts."""
    batch: list[tuple[Item, str, bytes]] = []
    size = 0
    for item in items:
        name, data = _uploadable(item)
        if batch and (len(batch) == MAX_FILES or size + len(data) > MAX_UPLOAD_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((item, name, data))
        size += len(data)
    if batch:
        yield batch


def _uploadable(item: Item) -> tuple[str, bytes]:
    """Returns the image's file name and bytes, converted to PNG if browsers cannot show it."""
    name = to_file_name(item.image, item.path)
    if PurePath(name).suffix in BROWSER_SUFFIXES:
        return name, read_image(item)
    as_png = BytesIO()
    open_picture(BytesIO(read_image(item)), show(item.path)).save(as_png, "PNG")
    return str(PurePath(name).with_suffix(".png")), as_png.getvalue()


def _upload(server: Server, project: int, batch: list[tuple[Item, str, bytes]]) -> dict[int, str]:
    """Uploads a batch and returns the URL that the server assigned to each image."""
    files = {f"file{item.image}": (name, data) for item, name, data in batch}
    response = call(server, f"/api/projects/{project}/import?commit_to_project=false", files=files)
    numbers = response.get("file_upload_ids") if isinstance(response, dict) else None
    if not isinstance(numbers, list) or len(numbers) != len(batch):
        raise DataError(f"{server.url} accepted {len(batch)} images but did not return their numbers. Push again.")
    wanted = ",".join(str(require(number, int, "An upload's number")) for number in numbers)
    listed = require_objects(call(server, f"/api/projects/{project}/file-uploads?ids=%5B{wanted}%5D"), "uploads")
    stored_names = {row.get("id"): require(row.get("file"), str, "An upload's file") for row in listed}
    urls: dict[int, str] = {}
    for (item, name, _), number in zip(batch, numbers, strict=True):
        stored = stored_names.get(number, "")
        if PurePath(name).stem not in stored:
            raise DataError(f"{server.url} returned the file {stored!r} for the upload of {name}. Push again.")
        urls[item.image] = f"/data/{stored}"
    return urls


def _normalize(url: str) -> str:
    """Returns the URL of a server in normal form, so that different spellings are equal."""
    parts = urlsplit(url)
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().rstrip("/")


def _number(project: Any) -> int:
    return require(require(project, dict, "The new project").get("id"), int, "The new project's number")
