"""What every request must pass before anything is done for it: host, token, origin, kind and size of its body.

The page is for whoever was given its address. Other sites open in the same browser, names that point to this machine
(DNS rebinding) and other users of the machine are kept out.
"""

import ipaddress
import time
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rarefish.labeling.tokens import SESSION_S, Keys, WrongTokens

MOST_BODY_BYTES = 64 * 1024
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
BODY_UNREAD = (408, 413)
"""After these the line is closed: what is left of the body is not read, however long it is."""
NO_TOKEN = "Open the address that `rarefish label` printed when it started: it has the token that this page asks for."
# The browser keeps the cookie back where a link on another site was followed; asked for by our own page, it comes.
AGAIN = '<!doctype html><title>rarefish</title><meta http-equiv="refresh" content="0">' + NO_TOKEN


TOO_MANY = "Too many wrong tokens came from this address. Wait a few seconds, then open the link again."


def guard(app: ASGIApp, keys: Keys, hosts: frozenset[str]) -> ASGIApp:
    """The app behind these checks; nothing of it runs for a request that is refused."""
    wrong = WrongTokens()

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        chosen = refuse(Request(scope), keys, hosts, wrong) or app
        await chosen(scope, receive, _with_headers(send))

    return run


def refuse(request: Request, keys: Keys, hosts: frozenset[str], wrong: WrongTokens) -> Response | None:
    """The answer to a request that may not pass; None where it may, and `request.state.person` is whose link it has."""
    host = name_of(request.headers.get("host", ""))
    if not is_known(host, hosts):
        return error_response(
            request, 403, f"This server does not answer as {host[:80]!r}, only as {', '.join(sorted(hosts))}."
        )
    port = (request.scope.get("server") or ("", 0))[1] or 0
    token = request.query_params.get("token")
    if token is not None and request.method == "GET" and request.url.path in ("/", "/dashboard"):
        who = _person(request, token, keys, wrong)
        return who if isinstance(who, Response) else _let_in(request, keys.sign(who, port, time.time()), port)
    who = keys.read(request.cookies.get(_cookie(port), ""), port, time.time())
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if who is None and scheme == "Bearer":
        who = _person(request, bearer, keys, wrong)
        if isinstance(who, Response):
            return who
    if who is None and request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
        return HTMLResponse(AGAIN, 401)
    if who is None:
        return error_response(request, 401, NO_TOKEN)
    request.state.person = who
    return _refuse_post(request) if request.method == "POST" else None


def _person(request: Request, token: str, keys: Keys, wrong: WrongTokens) -> str | Response:
    """Whose token it is. An address that has sent many wrong ones waits before another is looked at."""
    address = request.client.host if request.client else ""
    if wrong.are_too_many(address):
        answer = error_response(request, 429, TOO_MANY)
        answer.headers["Retry-After"] = "1"
        return answer
    who = keys.person_of(token)
    if who is None:
        wrong.add(address)
        return error_response(request, 401, NO_TOKEN)
    return who


def place_of(origin: str) -> str:
    """Host and port of an origin; empty where it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _refuse_post(request: Request) -> Response | None:
    headers = request.headers
    origin = headers.get("origin")
    is_ours = origin is None or place_of(origin) == headers.get("host", "").lower()
    if not is_ours or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return error_response(
            request, 403, "Only this server's own pages may write; this request came from another site."
        )
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return error_response(request, 415, "Send JSON, with the header Content-Type: application/json.")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        return error_response(request, 400, f"Content-Length must be a number, not {length[:40]!r}.")
    if int(length[:20]) > MOST_BODY_BYTES:
        return error_response(request, 413, f"The body has {length[:20]} bytes; at most {MOST_BODY_BYTES:,} are read.")
    return None


def error_response(request: Request, status: int, sentence: str) -> Response:
    """One clear sentence: as JSON to the page's script, as text to a person.

    The JSON names the workspace, so that the page can tell this server's refusal from another server's.
    """
    if request.url.path.startswith(("/api/", "/image/")):
        return JSONResponse({"error": sentence, "workspace": request.app.state.api.identity}, status)
    return PlainTextResponse(sentence + "\n", status)


def name_of(host: str) -> str:
    """A Host header's name without its port, in lower case."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


def is_known(name: str, hosts: frozenset[str]) -> bool:
    """A server on every address answers to any address as such: only a *name* can be made to point elsewhere."""
    return name in hosts or (bool(hosts & ANY_ADDRESS) and is_address(name))


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _cookie(port: int) -> str:
    """The session's name: a browser sends all cookies of a host to all of its ports."""
    return f"rarefish-{port}"


def _let_in(request: Request, session: str, port: int) -> Response:
    answer = RedirectResponse(request.url.path, 303)
    is_https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    answer.set_cookie(_cookie(port), session, SESSION_S, httponly=True, samesite="strict", secure=is_https)
    return answer


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if message["status"] in BODY_UNREAD:
                headers["Connection"] = "close"
        await send(message)

    return sent
