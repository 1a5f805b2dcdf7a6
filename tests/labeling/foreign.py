"""Servers that are not ours, on the port where the labeling server was: login proxies and the like."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOGIN = b"<!doctype html><title>Log in</title><form>Your password, please.</form>"
REPLIES = {
    "a login page": (200, "text/html", LOGIN, {}),
    "an empty object": (200, "application/json", b"{}", {}),
    "a row of nobody's": (200, "application/json", b'{"label": 1, "task": null}', {}),
    "a refusal of its own": (404, "application/json", b'{"error": "no such thing"}', {}),
    "a redirect to a login page": (302, "text/html", b"", {"Location": "/login"}),
    "a bad gateway": (502, "text/html", b"<h1>Bad gateway</h1>", {}),
}


@contextmanager
def foreign(port: int, kind: str) -> Iterator[list[str]]:
    """A server on that port that replies in one way to everything; the addresses posted to are collected."""
    posted: list[str] = []
    status, media, content, more = REPLIES[kind]

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            received = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.command == "POST":
                assert json.loads(received)
                posted.append(self.path)
            is_login = self.path == "/login"
            self.send_response(200 if is_login else status)
            body = LOGIN if is_login else content
            for name, value in {"Content-Type": media, "Content-Length": str(len(body)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = reply

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield posted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
