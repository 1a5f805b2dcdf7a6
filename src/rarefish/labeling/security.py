"""Checks every request before it is handled: host, token, origin, content type and size of its body.

Only people with a link may use the page. Other sites in the same browser, host names that point to this machine (DNS
rebinding) and other users of the machine are refused.
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
"""After these statuses the connection is closed, because the rest of the body was not read."""
NO_TOKEN = "Open the address that `rarefish label` printed when it started: it has the token that this page asks for."
# After a link on another site is followed, the browser omits the cookie; when our own page reloads, it sends it.
AGAIN = '<!doctype html><title>rarefish</title><meta http-equiv="refresh" content="0">' + NO_TOKEN


TOO_MANY = "Too many wrong tokens came from this address. Wait a few seconds, then open the link again."


def guard(app: ASGIApp, keys: Keys, hosts: frozenset[str]) -> ASGIApp:
    """Wraps the app in these checks; a refused request never reaches it."""
    wrong = WrongTokens()

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        handler = refuse(Request(scope), keys, hosts, wrong) or app
        await handler(scope, receive, _with_headers(send))

    return run


def refuse(request: Request, keys: Keys, hosts: frozenset[str], wrong: WrongTokens) -> Response | None:
    """The reply to a refused request; None if it may pass, with its link's owner in `request.state.person`."""
    host = host_name(request.headers.get("host", ""))
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
    """The owner of a token, or a refusal. An address that has sent many wrong tokens must wait."""
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


def netloc_of(origin: str) -> str:
    """Host and port of an origin; empty if it is not a valid one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _refuse_post(request: Request) -> Response | None:
    headers = request.headers
    origin = headers.get("origin")
    is_ours = origin is None or netloc_of(origin) == headers.get("host", "").lower()
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
    """An error reply of one sentence: JSON for API requests, else plain text.

    The JSON has the workspace's identity, so that the page can tell this server's refusal from another server's.
    """
    if request.url.path.startswith(("/api/", "/image/")):
        return JSONResponse({"error": sentence, "workspace": request.app.state.api.identity}, status)
    return PlainTextResponse(sentence + "\n", status)


def host_name(host: str) -> str:
    """The name in a Host header, without its port and in lower case."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


def is_known(name: str, hosts: frozenset[str]) -> bool:
    """Whether the server answers to this name. On all interfaces it accepts any IP address, which cannot be rebound."""
    return name in hosts or (bool(hosts & ANY_ADDRESS) and is_address(name))


def is_address(name: str) -> bool:
    """Whether this is an IP address rather than a host name."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _cookie(port: int) -> str:
    """The cookie's name, with the port, because a browser sends a host's cookies to all of its ports."""
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
