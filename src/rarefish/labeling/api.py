"""The labeling API: routes and replies. Reads, writes and image encoding run in separate worker queues."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rarefish.errors import RarefishError, WorkspaceError
from rarefish.labeling import images, request_fields
from rarefish.labeling.security import HEADERS, error_response
from rarefish.labeling.worker_threads import WorkerQueue, cached
from rarefish.workspace import answers
from rarefish.workspace.store import Store

PAGES = {"/": "page.html", "/dashboard": "dashboard.html"}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
IMAGE_LASTS_S = 600
PROGRESS_LASTS_S = 1.0
SUMMARY_LASTS_S = 5.0
MERGE_EVERY_S = 5.0
MOST_DISAGREEMENTS = 200
"""Maximum number of disagreements in one reply."""


def bare_summary(store: Store) -> dict[str, Any]:
    """Returns a summary for the dashboard without models: classes and progress."""
    return {"classes": store.classes(), "progress": asdict(answers.progress(store))}


class LabelingApi:
    """A workspace's store with its worker queues and cached values."""

    def __init__(self, store: Store, identity: str, summary: Callable[[Store], dict[str, Any]]) -> None:
        self.store, self.identity = store, identity
        self.reading, self.writing, self.encoding = (
            WorkerQueue("reads", 2),
            WorkerQueue("writes", 1),
            WorkerQueue("encodes", 2),
        )
        self.progress = cached(lambda: answers.progress(store), PROGRESS_LASTS_S)
        self.summary = cached(lambda: summary(store), SUMMARY_LASTS_S)

    async def keep_merging(self) -> None:
        """Merges acknowledged labels from the write-ahead log into rarefish.db every few seconds."""
        while True:
            await asyncio.sleep(MERGE_EVERY_S)
            with suppress(WorkspaceError, HTTPException):  # will be merged next time
                await self.writing.run(self.store.checkpoint)

    def close(self) -> None:
        """Waits for running work and closes the queues."""
        for queue in (self.reading, self.writing, self.encoding):
            queue.close()

    def reply(self, **found: Any) -> Response:
        """Returns a JSON reply with the workspace's identity, without which the page would not accept it."""
        return JSONResponse({"workspace": self.identity, **found})

    async def body(self, request: Request) -> dict[str, Any]:
        """Returns the body of a request; replies with status 409 if it is meant for another workspace."""
        body = await request_fields.read_body(request)
        if body.get("workspace", self.identity) != self.identity:
            raise HTTPException(409, "This page belongs to another workspace. Reload the page.")
        return body

    def person(self, request: Request, body: dict[str, Any]) -> str:
        """Returns who is labeling: the owner of the link or, with a shared link, the name that the page sends."""
        who, proven = request_fields.person(request_fields.text(body, "who")), request.state.person
        if proven and who != proven:
            raise HTTPException(403, f"This link belongs to {proven} and cannot be used to label as {who[:64]}.")
        return who


def make_routes(api: LabelingApi) -> list[Route]:
    """Returns the routes for pages, static files, API calls and images."""
    reads = {"work": work, "progress": progress, "disagreements": disagreements, "summary": summary}
    writes = {"next": take, "answer": answer, "undo": undo}
    return [
        *(Route(path, _file(name, "no-cache")) for path, name in PAGES.items()),
        *(Route(f"/static/{name}", _file(name, "no-cache")) for name in static_names()),
        *(Route(f"/api/{name}", partial(run, api)) for name, run in reads.items()),
        *(Route(f"/api/{name}", partial(run, api), methods=["POST"]) for name, run in writes.items()),
        Route("/image/{id}", partial(image, api)),
    ]


def static_names() -> list[str]:
    """Returns the names of all scripts, style sheets and icons."""
    found = (file.name for file in files("rarefish.labeling").iterdir())
    return sorted(name for name in found if name.rpartition(".")[2] in ("js", "css", "svg"))


async def work(api: LabelingApi, request: Request) -> Response:
    """Returns what a page needs when it loads: classes, person, settings and progress."""
    who = request.state.person or request_fields.person(request.query_params.get("who", ""))
    settings = await api.reading.run(api.store.settings)
    return api.reply(
        person=who,
        is_proven=bool(request.state.person),
        people_per_image=settings.get("people_per_image", 1),
        classes=await api.reading.run(api.store.classes),
        progress=await _progress(api, who),
    )


async def progress(api: LabelingApi, request: Request) -> Response:
    """Returns how many images are answered and how many are still open."""
    return api.reply(**await _progress(api, request_fields.person(request.query_params.get("who", ""))))


async def _progress(api: LabelingApi, who: str) -> dict[str, Any]:
    found = asdict(await api.reading.run(api.progress))
    return found | {"own": found["by_person"].get(who, 0)}


async def take(api: LabelingApi, request: Request) -> Response:
    """Returns new tasks, and those of the held images whose lease this person still has."""
    body = await api.body(request)
    who, held = api.person(request, body), request_fields.images(body, "held")
    count = request_fields.integer(body, "count", request_fields.MOST_TASKS, default=1)
    kept = await api.writing.run(answers.renew, api.store, who, held) if held else ()
    found = await api.writing.run(answers.take, api.store, who, count, held) if count else []
    return api.reply(tasks=[asdict(task) for task in found], kept=kept)


async def answer(api: LabelingApi, request: Request) -> Response:
    """Records an answer."""
    body = await api.body(request)
    ticket = request_fields.ticket(body)
    given = (request_fields.integer(body, "image"), api.person(request, body), request_fields.text(body, "answer"))
    rest = (request_fields.optional_integer(body, "class"), ticket, request_fields.seconds(body))
    return api.reply(label=await api.writing.run(answers.answer, api.store, *given, *rest), ticket=ticket)


async def undo(api: LabelingApi, request: Request) -> Response:
    """Undoes the person's last answer."""
    body = await api.body(request)
    who, ticket = api.person(request, body), request_fields.ticket(body)
    task = await api.writing.run(answers.undo, api.store, who, ticket)
    return api.reply(task=task and asdict(task), ticket=ticket)


async def disagreements(api: LabelingApi, request: Request) -> Response:
    """Returns the images on which people disagree."""
    return api.reply(**await api.reading.run(list_disagreements, api.store))


def list_disagreements(store: Store) -> dict[str, Any]:
    """Returns the number of images on which people disagree, and the first ones with their tasks and votes."""
    images = sorted(answers.disagreements(store))
    some = tuple(images[:MOST_DISAGREEMENTS])
    said = answers.opinions(store, some)
    tasks = {task.image: asdict(task) for task in answers.tasks(store, some)}
    rows = [
        {"task": tasks[image], "said": [{"answer": what, "people": people} for what, people in said[image].items()]}
        for image in some
        if image in tasks
    ]
    return {"total": len(images), "images": rows}


async def summary(api: LabelingApi, request: Request) -> Response:
    """Returns the contents of the dashboard."""
    return api.reply(**await api.reading.run(api.summary))


async def image(api: LabelingApi, request: Request) -> Response:
    """Returns an image by id, at the requested size rounded up to an available one."""
    query = {name: request.path_params.get(name) or request.query_params.get(name, "1280") for name in ("id", "size")}
    if not all(value.isascii() and value.isdigit() and len(value) < 19 for value in query.values()):
        raise HTTPException(404, "Request an image by its number: /image/12?size=640.")
    number, size = int(query["id"]), images.round_up(int(query["size"]))
    file = await api.reading.run(images.find, api.store, number)
    headers = {"ETag": f'"{file.hash}-{size}"', "Cache-Control": f"private, max-age={IMAGE_LASTS_S}"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    encoded = await api.encoding.run(images.encode, file, size)
    return Response(encoded.content, media_type=encoded.media_type, headers=headers)


def _file(name: str, cache: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("rarefish.labeling") / name).read_bytes()
    headers = {"ETag": f'"{blake2b(content, digest_size=8).hexdigest()}"', "Cache-Control": cache}
    kind = KINDS[name.rpartition(".")[2]]

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return send


async def on_error(request: Request, error: Exception) -> Response:
    """Returns an error reply with a status and one sentence; unexpected errors are logged and get status 500."""
    if isinstance(error, HTTPException):
        plain = {404: f"There is nothing at {request.url.path[:80]}.", 405: f"{request.method} is not allowed here."}
        is_bare = error.detail in ("Not Found", "Method Not Allowed")
        answer = error_response(request, error.status_code, plain[error.status_code] if is_bare else error.detail)
        answer.headers.update(error.headers or {})
        return answer
    if isinstance(error, WorkspaceError):
        return error_response(request, 503, str(error))
    if isinstance(error, RarefishError):
        return error_response(request, 422, str(error))
    answer = error_response(request, 500, "Something went wrong on the server; see its log.")
    answer.headers.update(HEADERS)  # this reply does not pass through `guard`
    return answer
