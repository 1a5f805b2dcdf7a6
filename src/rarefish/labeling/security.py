"""Checks of every request before it is handled: host, token, origin, content type and body size.

Only people with a link may use the page. Requests from other sites in the same browser, for other host names that point
to this machine (DNS rebinding), and by other users of the machine are rejected.
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
"""The connection is closed after these statuses, because the rest of the body was not read."""
NO_TOKEN = "Open the address that `rarefish label` printed when it started: it contains the token for this page."
# When the user follows a link from another site, the browser omits the cookie. When our page reloads, it sends it.
AGAIN = '<!doctype html><title>rarefish</title><meta http-equiv="refresh" content="0">' + NO_TOKEN


TOO_MANY = "Too many wrong tokens from this address. Wait a few seconds, then open the link again."


def guard(app: ASGIApp, keys: Keys, hosts: frozenset[str]) -> ASGIApp:
    """Returns the app wrapped in these checks; a rejected request never reaches it."""
    wrong = WrongTokens()

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        handler = refuse(Request(scope), keys, hosts, wrong) or app
        await handler(scope, receive, _with_headers(send))

    return run


def refuse(request: Request, keys: Keys, hosts: frozenset[str], wrong: WrongTokens) -> Response | None:
    """Returns the reply to a rejected request. Returns None if it may pass, and sets `request.state.person`."""
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
    """Returns the owner of a token, or an error reply. An address that has sent many wrong tokens must wait."""
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
    """Returns the host and port of an origin, or an empty text if it is not valid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _refuse_post(request: Request) -> Response | None:
    headers = request.headers
    origin = headers.get("origin")
    is_ours = origin is None or netloc_of(origin) == headers.get("host", "").lower()
    if not is_ours or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return error_response(request, 403, "Only pages of this server may write; this request came from another site.")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return error_response(request, 415, "Send JSON, with the header Content-Type: application/json.")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        return error_response(request, 400, f"Content-Length must be a number, not {length[:40]!r}.")
    if int(length[:20]) > MOST_BODY_BYTES:
        return error_response(request, 413, f"The body has {length[:20]} bytes; at most {MOST_BODY_BYTES:,} are read.")
    return None


def error_response(request: Request, status: int, sentence: str) -> Response:
    """Returns an error reply of one sentence, as JSON for API requests and otherwise as plain text.

    The JSON contains the workspace's identity, so that the page can tell this server's errors from another server's.
    """
    if request.url.path.startswith(("/api/", "/image/")):
        return JSONResponse({"error": sentence, "workspace": request.app.state.api.identity}, status)
    return PlainTextResponse(sentence + "\n", status)


def host_name(host: str) -> str:
    """Returns the name in a Host header, in lower case and without the port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


def is_known(name: str, hosts: frozenset[str]) -> bool:
    """Returns whether the server accepts this name. On all interfaces, it accepts any IP address (no rebinding)."""
    return name in hosts or (bool(hosts & ANY_ADDRESS) and is_address(name))


def is_address(name: str) -> bool:
    """Returns whether the name is an IP address."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _cookie(port: int) -> str:
    """Returns the cookie's name, which includes the port because browsers send a host's cookies to all of its ports."""
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
