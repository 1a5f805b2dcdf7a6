"""Requests to a Label Studio server, with the standard library only. Every failure raises a RarefishError."""

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
UNAUTHORIZED = (401, 403)


@dataclass(frozen=True)
class Server:
    """URL of a Label Studio server and a user's token, which is a legacy token or a personal one (a JWT)."""

    url: str
    token: str = field(repr=False)
    timeout_s: float = TIMEOUT_S
    _access: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ArgumentError(f"{self.url!r} is not the URL of a server. Give a URL such as http://localhost:8080")
        if not self.token.strip() or not self.token.isprintable():
            raise ArgumentError("The token is empty or not printable. Copy it from Account & Settings in Label Studio.")

    @property
    def is_personal(self) -> bool:
        """Whether the token is a personal token."""
        return self.token.count(".") == 2


def call(server: Server, path: str, body: Any = None, files: Mapping[str, tuple[str, bytes]] | None = None) -> Any:
    """Returns the JSON of the response. The request is a POST if it has a body or files (by field name)."""
    content, kind = (None, "")
    if files:
        content, kind = _multipart(files)
    elif body is not None:
        content, kind = json.dumps(body).encode(), "application/json"
    try:
        return _send(server, path, content, kind, _authorization(server))
    except HTTPError as error:
        if error.code not in UNAUTHORIZED or not server.is_personal:
            raise _explain(server, error) from error
    server._access.clear()  # access tokens expire after a few minutes, so a long push needs several
    try:
        return _send(server, path, content, kind, _authorization(server))
    except HTTPError as error:
        raise _explain(server, error) from error


class _NoRedirects(HTTPRedirectHandler):
    """Rejects redirects, so that the token is not sent to another server."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise ArgumentError(f"{req.full_url} redirects to {newurl}. Give that URL instead, if you trust it.")


def _send(server: Server, path: str, content: bytes | None, kind: str, authorization: str) -> Any:
    headers = {"Accept": "application/json"}
    headers |= {"Content-Type": kind} if kind else {}
    headers |= {"Authorization": authorization} if authorization else {}
    request = Request(server.url.rstrip("/") + path, data=content, headers=headers)
    try:
        with build_opener(_NoRedirects).open(request, timeout=server.timeout_s) as response:
            text = response.read()
    except HTTPError:
        raise
    except TimeoutError as error:
        raise ArgumentError(f"{server.url} did not respond within {server.timeout_s:g} s.") from error
    except (URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ArgumentError(f"{server.url} cannot be reached: {reason}. Is Label Studio running there?") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{server.url}{path} did not return JSON. Check that it is the URL of Label Studio itself."
        ) from error


def _authorization(server: Server) -> str:
    if not server.is_personal:
        return f"Token {server.token.strip()}"
    if "token" not in server._access:
        body = json.dumps({"refresh": server.token.strip()}).encode()
        try:
            response = _send(server, "/api/token/refresh/", body, "application/json", "")
        except HTTPError as error:
            raise _explain(server, error) from error
        if not isinstance(response, dict) or not isinstance(response.get("access"), str):
            raise DataError(f"{server.url} did not return an access token for the personal token.")
        server._access["token"] = response["access"]
    return f"Bearer {server._access['token']}"


def _explain(server: Server, error: HTTPError) -> ArgumentError | DataError:
    with error:
        detail = _detail(error.read(100_000))
    if error.code in UNAUTHORIZED:
        kind = "personal" if server.is_personal else "legacy"
        return ArgumentError(
            f"{server.url} rejects the {kind} token ({error.code}{detail}). Check that it is complete and not "
            "revoked, and that such tokens are enabled under Organization > Access Token Settings."
        )
    if error.code == 404:
        return ArgumentError(f"{error.url} does not exist (404{detail}). Check the URL and the project number.")
    return DataError(f"{error.url} responded with {error.code}{detail}.")


def _detail(text: bytes) -> str:
    """Returns the explanations in a JSON error response, each preceded by a comma, or an empty text."""
    try:
        response = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    names = ("detail", "validation_errors")
    details = [response.get(name) for name in names] if isinstance(response, dict) else [response]
    return "".join(f", {str(detail)[:300]}" for detail in details if detail)


def _multipart(files: Mapping[str, tuple[str, bytes]]) -> tuple[bytes, str]:
    """Returns the body and content type of a form. The names come from `to_file_name` and need no escaping."""
    boundary, parts = secrets.token_hex(16), []
    for name, (file, content) in files.items():
        head = Message()
        head.add_header("Content-Disposition", "form-data", name=name, filename=file)
        head.add_header("Content-Type", "application/octet-stream")
        parts += [b"--", boundary.encode(), b"\r\n", head.as_bytes().strip().replace(b"\n", b"\r\n")]
        parts += [b"\r\n\r\n", content, b"\r\n"]
    return b"".join([*parts, b"--", boundary.encode(), b"--\r\n"]), f"multipart/form-data; boundary={boundary}"
