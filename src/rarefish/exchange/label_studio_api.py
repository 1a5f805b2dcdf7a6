"""Requests to a Label Studio server, by the standard library alone; whatever goes wrong is one clear sentence."""

import http.client
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from rarefish.errors import ArgumentError, DataError

TIMEOUT_S = 60.0
REFUSED = (401, 403)


@dataclass(frozen=True)
class Server:
    """Where Label Studio is, and the token of a user: a legacy one, or a personal one, which is a JWT."""

    url: str
    token: str = field(repr=False)
    timeout_s: float = TIMEOUT_S
    _access: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ArgumentError(f"{self.url!r} is no address of a server. Give one like http://localhost:8080")
        if not self.token.strip() or not self.token.isprintable():
            raise ArgumentError("The token is empty or cannot be printed. Copy it from Account & Settings.")

    @property
    def is_personal(self) -> bool:
        return self.token.count(".") == 2


def call(server: Server, path: str, body: Any = None, files: Mapping[str, tuple[str, bytes]] | None = None) -> Any:
    """The answer's JSON. With a body, or files by field name, it is a POST."""
    content, kind = (None, "")
    if files:
        content, kind = _multipart(files)
    elif body is not None:
        content, kind = json.dumps(body).encode(), "application/json"
    try:
        return _send(server, path, content, kind, _authorization(server))
    except HTTPError as error:
        if error.code not in REFUSED or not server.is_personal:
            raise _explain(server, error) from error
    server._access.clear()  # an access token lasts some minutes: a long push needs several
    try:
        return _send(server, path, content, kind, _authorization(server))
    except HTTPError as error:
        raise _explain(server, error) from error


class _Staying(HTTPRedirectHandler):
    """A token is not sent on to where a server points."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise ArgumentError(f"{req.full_url} sends on to {newurl}. Give that server's address, if you trust it.")


def _send(server: Server, path: str, content: bytes | None, kind: str, authorization: str) -> Any:
    headers = {"Accept": "application/json"}
    headers |= {"Content-Type": kind} if kind else {}
    headers |= {"Authorization": authorization} if authorization else {}
    request = Request(server.url.rstrip("/") + path, data=content, headers=headers)
    try:
        with build_opener(_Staying).open(request, timeout=server.timeout_s) as response:
            text = response.read()
    except HTTPError:
        raise
    except TimeoutError as error:
        raise ArgumentError(f"{server.url} does not answer within {server.timeout_s:g} s.") from error
    except (URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ArgumentError(f"{server.url} cannot be reached: {reason}. Is Label Studio running there?") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{server.url}{path} gave no JSON: is it the address of Label Studio itself?") from error


def _authorization(server: Server) -> str:
    if not server.is_personal:
        return f"Token {server.token.strip()}"
    if "token" not in server._access:
        body = json.dumps({"refresh": server.token.strip()}).encode()
        try:
            given = _send(server, "/api/token/refresh/", body, "application/json", "")
        except HTTPError as error:
            raise _explain(server, error) from error
        if not isinstance(given, dict) or not isinstance(given.get("access"), str):
            raise DataError(f"{server.url} gave no access token for the personal one.")
        server._access["token"] = given["access"]
    return f"Bearer {server._access['token']}"


def _explain(server: Server, error: HTTPError) -> ArgumentError | DataError:
    with error:
        said = _detail(error.read(100_000))
    if error.code in REFUSED:
        kind = "personal" if server.is_personal else "legacy"
        return ArgumentError(
            f"{server.url} refuses the token ({error.code}{said}). It looks like a {kind} one: is it whole, "
            "not revoked, and are such tokens switched on under Organization > Access Token Settings?"
        )
    if error.code == 404:
        return ArgumentError(f"{error.url} is not there (404{said}). Check the address and the project's number.")
    return DataError(f"{error.url} answered {error.code}{said}.")


def _detail(text: bytes) -> str:
    """What the server says of it, if it says so in JSON."""
    try:
        known = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    said = [known.get(name) for name in ("detail", "validation_errors")] if isinstance(known, dict) else [known]
    return "".join(f", {str(part)[:300]}" for part in said if part)


def _multipart(files: Mapping[str, tuple[str, bytes]]) -> tuple[bytes, str]:
    """Names are ours, from numbers: nothing in them needs escaping."""
    boundary, parts = secrets.token_hex(16), []
    for name, (file, content) in files.items():
        head = Message()
        head.add_header("Content-Disposition", "form-data", name=name, filename=file)
        head.add_header("Content-Type", "application/octet-stream")
        parts += [b"--", boundary.encode(), b"\r\n", head.as_bytes().strip().replace(b"\n", b"\r\n")]
        parts += [b"\r\n\r\n", content, b"\r\n"]
    return b"".join([*parts, b"--", boundary.encode(), b"--\r\n"]), f"multipart/form-data; boundary={boundary}"
