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
from rarefish.labeling import images as showing
from rarefish.labeling import request_fields as asks
from rarefish.labeling.security import HEADERS, say
from rarefish.labeling.workers import Line, remembered
from rarefish.workspace import answers
from rarefish.workspace import answers as agreement
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


class Desk:
    """A store, the lines before it, and what is remembered for a moment."""

    def __init__(self, store: Store, identity: str, summary: Callable[[Store], dict[str, Any]]) -> None:
        self.store, self.identity = store, identity
        self.reading, self.writing, self.drawing = Line("reads", 2), Line("writes", 1), Line("draws", 2)
        self.progress = remembered(lambda: answers.progress(store), PROGRESS_LASTS_S)
        self.summary = remembered(lambda: summary(store), SUMMARY_LASTS_S)

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
        body = await asks.read_body(request)
        if body.get("workspace", self.identity) != self.identity:
            raise HTTPException(409, "This page belongs to another workspace. Load it again.")
        return body

    def person(self, request: Request, body: dict[str, Any]) -> str:
        """Who labels: whom the link belongs to; with a shared link, whoever the page says it is."""
        who, proven = asks.person(asks.text(body, "who")), request.state.person
        if proven and who != proven:
            raise HTTPException(403, f"This link belongs to {proven}: nobody can label as {who[:64]} with it.")
        return who


def make_routes(desk: Desk) -> list[Route]:
    reads = {"work": work, "progress": progress, "disagreements": disagreements, "summary": summary}
    writes = {"next": take, "answer": answer, "undo": undo}
    return [
        *(Route(path, _file(name, "no-cache")) for path, name in PAGES.items()),
        *(Route(f"/static/{name}", _file(name, "no-cache")) for name in static_names()),
        *(Route(f"/api/{name}", partial(run, desk)) for name, run in reads.items()),
        *(Route(f"/api/{name}", partial(run, desk), methods=["POST"]) for name, run in writes.items()),
        Route("/image/{id}", partial(image, desk)),
    ]


def static_names() -> list[str]:
    found = (file.name for file in files("rarefish.labeling").iterdir())
    return sorted(name for name in found if name.rpartition(".")[2] in ("js", "css", "svg"))


async def work(desk: Desk, request: Request) -> Response:
    """All that a page needs once."""
    who = request.state.person or asks.person(request.query_params.get("who", ""))
    settings = await desk.reading.run(desk.store.settings)
    return desk.reply(
        person=who,
        is_proven=bool(request.state.person),
        people_per_image=settings.get("people_per_image", 1),
        classes=await desk.reading.run(desk.store.classes),
        progress=await _progress(desk, who),
    )


async def progress(desk: Desk, request: Request) -> Response:
    return desk.reply(**await _progress(desk, asks.person(request.query_params.get("who", ""))))


async def _progress(desk: Desk, who: str) -> dict[str, Any]:
    found = asdict(await desk.reading.run(desk.progress))
    return found | {"own": found["by_person"].get(who, 0)}


async def take(desk: Desk, request: Request) -> Response:
    """New tasks, and those of the held images that are still this person's."""
    body = await desk.body(request)
    who, held = desk.person(request, body), asks.images(body, "held")
    count = asks.whole(body, "count", asks.MOST_TASKS, default=1)
    kept = await desk.writing.run(answers.renew, desk.store, who, held) if held else ()
    found = await desk.writing.run(answers.take, desk.store, who, count, held) if count else []
    return desk.reply(tasks=[asdict(task) for task in found], kept=kept)


async def answer(desk: Desk, request: Request) -> Response:
    body = await desk.body(request)
    ticket = asks.ticket(body)
    given = (asks.whole(body, "image"), desk.person(request, body), asks.text(body, "answer"))
    rest = (asks.whole_or_none(body, "class"), ticket, asks.seconds(body))
    return desk.reply(label=await desk.writing.run(answers.answer, desk.store, *given, *rest), ticket=ticket)


async def undo(desk: Desk, request: Request) -> Response:
    body = await desk.body(request)
    who, ticket = desk.person(request, body), asks.ticket(body)
    task = await desk.writing.run(answers.undo, desk.store, who, ticket)
    return desk.reply(task=task and asdict(task), ticket=ticket)


async def disagreements(desk: Desk, request: Request) -> Response:
    return desk.reply(**await desk.reading.run(list_split, desk.store))


def list_split(store: Store) -> dict[str, Any]:
    """Images on which people disagree, the first of many: each with its task and who said what."""
    images = sorted(agreement.disagreements(store))
    some = tuple(images[:MOST_SPLIT])
    said = agreement.opinions(store, some)
    tasks = {task.image: asdict(task) for task in answers.tasks(store, some)}
    rows = [
        {"task": tasks[image], "said": [{"answer": what, "people": people} for what, people in said[image].items()]}
        for image in some
        if image in tasks
    ]
    return {"total": len(images), "images": rows}


async def summary(desk: Desk, request: Request) -> Response:
    return desk.reply(**await desk.reading.run(desk.summary))


async def image(desk: Desk, request: Request) -> Response:
    """An image by id, as large as asked for, within bounds."""
    wish = {name: request.path_params.get(name) or request.query_params.get(name, "1280") for name in ("id", "size")}
    if not all(value.isascii() and value.isdigit() and len(value) < 19 for value in wish.values()):
        raise HTTPException(404, "An image is asked for by its number: /image/12?size=640.")
    number, size = int(wish["id"]), showing.round_up(int(wish["size"]))
    file = await desk.reading.run(showing.find, desk.store, number)
    headers = {"ETag": f'"{file.hash}-{size}"', "Cache-Control": f"private, max-age={IMAGE_LASTS_S}"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    drawn = await desk.drawing.run(showing.encode, file, size)
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
        answer = say(request, error.status_code, plain[error.status_code] if is_bare else error.detail)
        answer.headers.update(error.headers or {})
        return answer
    if isinstance(error, WorkspaceError):
        return say(request, 503, str(error))
    if isinstance(error, RarefishError):
        return say(request, 422, str(error))
    answer = say(request, 500, "Something went wrong in the server; its log says what.")
    answer.headers.update(HEADERS)  # this answer is given outside of the guards
    return answer
