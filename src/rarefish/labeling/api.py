"""The API: what the pages ask for, and what they get. Reading, writing and drawing each wait in a line of their own."""

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
from rarefish.labeling.workers import WorkerQueue, cached
from rarefish.workspace import answers
from rarefish.workspace.store import Store

PAGES = {"/": "page.html", "/dashboard": "dashboard.html"}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
IMAGE_LASTS_S = 600
PROGRESS_LASTS_S = 1.0
SUMMARY_LASTS_S = 5.0
MERGE_EVERY_S = 5.0
MOST_SPLIT = 200
"""Disagreements that one answer lists."""


def bare_summary(store: Store) -> dict[str, Any]:
    """What a dashboard can show of a workspace without models."""
    return {"classes": store.classes(), "progress": asdict(answers.progress(store))}


class LabelingApi:
    """A store, the lines before it, and what is remembered for a moment."""

    def __init__(self, store: Store, identity: str, summary: Callable[[Store], dict[str, Any]]) -> None:
        self.store, self.identity = store, identity
        self.reading, self.writing, self.drawing = (
            WorkerQueue("reads", 2),
            WorkerQueue("writes", 1),
            WorkerQueue("draws", 2),
        )
        self.progress = cached(lambda: answers.progress(store), PROGRESS_LASTS_S)
        self.summary = cached(lambda: summary(store), SUMMARY_LASTS_S)

    async def keep_merging(self) -> None:
        """Labels that were acknowledged stand in rarefish.db itself soon after, not in its -wal alone."""
        while True:
            await asyncio.sleep(MERGE_EVERY_S)
            with suppress(WorkspaceError, HTTPException):  # what is not merged now is merged next time
                await self.writing.run(self.store.checkpoint)

    def close(self) -> None:
        for line in (self.reading, self.writing, self.drawing):
            line.close()

    def reply(self, **found: Any) -> Response:
        """A reply that names the workspace: the page takes no other for an answer."""
        return JSONResponse({"workspace": self.identity, **found})

    async def body(self, request: Request) -> dict[str, Any]:
        """A request's body, if it is meant for this workspace."""
        body = await request_fields.read_body(request)
        if body.get("workspace", self.identity) != self.identity:
            raise HTTPException(409, "This page belongs to another workspace. Load it again.")
        return body

    def person(self, request: Request, body: dict[str, Any]) -> str:
        """Who labels: whom the link belongs to; with a shared link, whoever the page says it is."""
        who, proven = request_fields.person(request_fields.text(body, "who")), request.state.person
        if proven and who != proven:
            raise HTTPException(403, f"This link belongs to {proven}: nobody can label as {who[:64]} with it.")
        return who


def make_routes(api: LabelingApi) -> list[Route]:
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
    found = (file.name for file in files("rarefish.labeling").iterdir())
    return sorted(name for name in found if name.rpartition(".")[2] in ("js", "css", "svg"))


async def work(api: LabelingApi, request: Request) -> Response:
    """All that a page needs once."""
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
    return api.reply(**await _progress(api, request_fields.person(request.query_params.get("who", ""))))


async def _progress(api: LabelingApi, who: str) -> dict[str, Any]:
    found = asdict(await api.reading.run(api.progress))
    return found | {"own": found["by_person"].get(who, 0)}


async def take(api: LabelingApi, request: Request) -> Response:
    """New tasks, and those of the held images that are still this person's."""
    body = await api.body(request)
    who, held = api.person(request, body), request_fields.images(body, "held")
    count = request_fields.integer(body, "count", request_fields.MOST_TASKS, default=1)
    kept = await api.writing.run(answers.renew, api.store, who, held) if held else ()
    found = await api.writing.run(answers.take, api.store, who, count, held) if count else []
    return api.reply(tasks=[asdict(task) for task in found], kept=kept)


async def answer(api: LabelingApi, request: Request) -> Response:
    body = await api.body(request)
    ticket = request_fields.ticket(body)
    given = (request_fields.integer(body, "image"), api.person(request, body), request_fields.text(body, "answer"))
    rest = (request_fields.optional_integer(body, "class"), ticket, request_fields.seconds(body))
    return api.reply(label=await api.writing.run(answers.answer, api.store, *given, *rest), ticket=ticket)


async def undo(api: LabelingApi, request: Request) -> Response:
    body = await api.body(request)
    who, ticket = api.person(request, body), request_fields.ticket(body)
    task = await api.writing.run(answers.undo, api.store, who, ticket)
    return api.reply(task=task and asdict(task), ticket=ticket)


async def disagreements(api: LabelingApi, request: Request) -> Response:
    return api.reply(**await api.reading.run(list_split, api.store))


def list_split(store: Store) -> dict[str, Any]:
    """Images on which people disagree, the first of many: each with its task and who said what."""
    images = sorted(answers.disagreements(store))
    some = tuple(images[:MOST_SPLIT])
    said = answers.opinions(store, some)
    tasks = {task.image: asdict(task) for task in answers.tasks(store, some)}
    rows = [
        {"task": tasks[image], "said": [{"answer": what, "people": people} for what, people in said[image].items()]}
        for image in some
        if image in tasks
    ]
    return {"total": len(images), "images": rows}


async def summary(api: LabelingApi, request: Request) -> Response:
    return api.reply(**await api.reading.run(api.summary))


async def image(api: LabelingApi, request: Request) -> Response:
    """An image by id, as large as asked for, within bounds."""
    wish = {name: request.path_params.get(name) or request.query_params.get(name, "1280") for name in ("id", "size")}
    if not all(value.isascii() and value.isdigit() and len(value) < 19 for value in wish.values()):
        raise HTTPException(404, "An image is asked for by its number: /image/12?size=640.")
    number, size = int(wish["id"]), images.round_up(int(wish["size"]))
    file = await api.reading.run(images.find, api.store, number)
    headers = {"ETag": f'"{file.hash}-{size}"', "Cache-Control": f"private, max-age={IMAGE_LASTS_S}"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    drawn = await api.drawing.run(images.encode, file, size)
    return Response(drawn.content, media_type=drawn.media_type, headers=headers)


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
    """One sentence and the right status; what nobody foresaw is 500, and the log has it."""
    if isinstance(error, HTTPException):
        plain = {404: f"There is nothing at {request.url.path[:80]}.", 405: f"{request.method} is not possible here."}
        is_bare = error.detail in ("Not Found", "Method Not Allowed")
        answer = error_response(request, error.status_code, plain[error.status_code] if is_bare else error.detail)
        answer.headers.update(error.headers or {})
        return answer
    if isinstance(error, WorkspaceError):
        return error_response(request, 503, str(error))
    if isinstance(error, RarefishError):
        return error_response(request, 422, str(error))
    answer = error_response(request, 500, "Something went wrong in the server; its log says what.")
    answer.headers.update(HEADERS)  # this answer is given outside of the guards
    return answer
