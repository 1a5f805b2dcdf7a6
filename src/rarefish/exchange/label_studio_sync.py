"""Picks sent to a Label Studio server and annotations fetched from it, with a user's token."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from rarefish.data.image_io import open_picture
from rarefish.errors import ArgumentError, DataError, RarefishError, list_some
from rarefish.exchange.formats.label_studio import CONTROL, find_answers, other_choices, to_config, to_task
from rarefish.exchange.found import need, need_rows, ours
from rarefish.exchange.import_labels import Imported, take_in
from rarefish.exchange.items import Item, content, read_items, sift
from rarefish.exchange.label_studio_api import Server, call
from rarefish.exchange.names import to_file
from rarefish.workspace.indexing import show
from rarefish.workspace.store import Store

SHOWN = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"}
"""What Label Studio takes and a browser shows; other images are sent as PNG."""
MOST_FILES, MOST_BYTES = 50, 50 << 20
"""Of one request; Label Studio takes 100 files and 250 MB."""


@dataclass(frozen=True)
class Pushed:
    """What came of it."""

    project: int
    url: str
    sent: int
    already: int
    """Images that were in the project before."""
    left_out: tuple[str, ...] = ()
    """Sentences on images whose files changed since they were indexed."""


def push(store: Store, url: str, token: str, project: int | None = None) -> Pushed:
    """Uploads the images that still need answers as tasks with predictions; a new project without a number.

    The workspace remembers the project as soon as there is one, and a push that was cut short is gone on with: give it
    the number of `last_project`.
    """
    server, classes = Server(url, token), store.classes()
    items = [replace(item, said=()) for item in read_items(store, "picks") if item.is_open]
    if not items:
        raise DataError(f"Every image that was asked about is answered. Choose more: rarefish select {store.folder}")
    items, changed = sift(items)
    if project is None:
        number, there = _create(server, store.folder.resolve().name, classes), set()
    else:
        _check(server, project, classes)
        number, there = project, _images(_tasks(server, project))
    store.set(studio={"url": _plain(url), "project": number})  # before images are sent: that may fail half-way
    new = [item for item in items if (item.image, item.hash) not in there]
    _send(server, number, new, classes)
    page = f"{url.rstrip('/')}/projects/{number}/data"
    return Pushed(number, page, len(new), len(items) - len(new), tuple(changed))


def last_project(store: Store, url: str) -> int | None:
    """The number of the project on that server that the workspace was last pushed to."""
    known = store.settings().get("studio", {})
    return known.get("project") if known.get("url") == _plain(url) else None


def pull(store: Store, url: str, token: str, project: int, who: str) -> Imported:
    """Takes a project's annotations in; people go by their e-mail address there, `who` stands for the nameless."""
    server = Server(url, token)
    tasks = _tasks(server, project)
    users = need_rows(call(server, "/api/users/"), "users")
    people = {user["id"]: str(user["email"]) for user in users if isinstance(user.get("id"), int) and user.get("email")}
    return take_in(store, "label-studio", find_answers(tasks, store.classes(), people), who)


def _create(server: Server, name: str, classes: list[str]) -> int:
    body = {"title": f"rarefish {name}"[:50], "label_config": to_config(classes)}
    return _number(call(server, "/api/projects/", body))


def _check(server: Server, project: int, classes: list[str]) -> None:
    """Complains where the project could not hold our answers."""
    known = call(server, f"/api/projects/{project}/")
    controls = known.get("parsed_label_config") if isinstance(known, dict) else None
    control = controls.get(CONTROL) if isinstance(controls, dict) else None
    labels = control.get("labels", []) if isinstance(control, dict) else []
    missing = [name for name in [*classes, *other_choices(classes)] if name not in labels]
    if missing:
        raise ArgumentError(
            f"Project {project} has no choices named {CONTROL!r} with {list_some(missing)}. "
            "Set it up with the labeling_config.xml of an export, or make another: push --new"
        )


def _send(server: Server, project: int, items: list[Item], classes: list[str]) -> None:
    sent = 0
    try:
        for batch in _batches(items):
            addresses = _upload(server, project, batch)
            tasks = [to_task(replace(item, url=addresses[item.image]), classes) for item, _, _ in batch]
            call(server, f"/api/projects/{project}/import", tasks)
            sent += len(batch)
    except RarefishError as error:
        raise type(error)(
            f"{error} {sent} of {len(items)} images are in project {project}: push again to send the rest."
        ) from error


def _tasks(server: Server, project: int) -> list[dict[str, Any]]:
    path = f"/api/projects/{project}/export?exportType=JSON&download_all_tasks=true"
    return need_rows(call(server, path), "tasks")


def _images(tasks: list[dict[str, Any]]) -> set[tuple[int, str]]:
    metas = [task.get("meta") for task in tasks]
    known = [ours(meta.get("rarefish")) for meta in metas if isinstance(meta, dict)]
    return {(one["image"], one["hash"]) for one in known if one}


def _batches(items: list[Item]) -> Iterator[list[tuple[Item, str, bytes]]]:
    """Some images at a time, each with a name and bytes that Label Studio takes."""
    batch: list[tuple[Item, str, bytes]] = []
    size = 0
    for item in items:
        name, data = _shown(item)
        if batch and (len(batch) == MOST_FILES or size + len(data) > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((item, name, data))
        size += len(data)
    if batch:
        yield batch


def _shown(item: Item) -> tuple[str, bytes]:
    name = to_file(item.image, item.path)
    if PurePath(name).suffix in SHOWN:
        return name, content(item)
    as_png = BytesIO()
    open_picture(BytesIO(content(item)), show(item.path)).save(as_png, "PNG")
    return str(PurePath(name).with_suffix(".png")), as_png.getvalue()


def _upload(server: Server, project: int, batch: list[tuple[Item, str, bytes]]) -> dict[int, str]:
    """Image -> the address that the server gave it."""
    files = {f"file{item.image}": (name, data) for item, name, data in batch}
    done = call(server, f"/api/projects/{project}/import?commit_to_project=false", files=files)
    numbers = done.get("file_upload_ids") if isinstance(done, dict) else None
    if not isinstance(numbers, list) or len(numbers) != len(batch):
        raise DataError(f"{server.url} took {len(batch)} images but does not say where they are. Push again.")
    wanted = ",".join(str(need(number, int, "An upload's number")) for number in numbers)
    listed = need_rows(call(server, f"/api/projects/{project}/file-uploads?ids=%5B{wanted}%5D"), "uploads")
    places = {row.get("id"): need(row.get("file"), str, "An upload's file") for row in listed}
    found: dict[int, str] = {}
    for (item, name, _), number in zip(batch, numbers, strict=True):
        place = places.get(number, "")
        if PurePath(name).stem not in place:
            raise DataError(f"{server.url} mixed its uploads up: {name} lies at {place or 'no place'}. Push again.")
        found[item.image] = f"/data/{place}"
    return found


def _plain(url: str) -> str:
    """The same for all spellings of a server's address."""
    parts = urlsplit(url)
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().rstrip("/")


def _number(project: Any) -> int:
    return need(need(project, dict, "The new project").get("id"), int, "The new project's number")
