"""The few answers of a Label Studio server that we need, on loopback; the real one: tools/label_studio.py."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

LEGACY, PERSONAL = "0123456789abcdef", "aaa.bbb.ccc"


class Studio(ThreadingHTTPServer):
    """Projects, uploads, tasks and annotations in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.projects: list[dict[str, Any]] = []
        self.uploads: list[tuple[str, bytes]] = []
        self.tasks: list[dict[str, Any]] = []
        self.access: list[str] = []
        self.fails_after: int | None = None
        """Uploads of files that are taken before the server breaks down."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def annotate(self, choices: list[str], by: int = 1) -> None:
        for number, (task, choice) in enumerate(zip(self.tasks, choices, strict=False)):
            result = {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [choice]}}
            row = {"id": number + 1, "completed_by": by, "updated_at": "2026-02-03T04:05:06.789Z"}
            task["annotations"] = [row | {"result": [result] if choice else [], "was_cancelled": not choice}]


class Answering(BaseHTTPRequestHandler):
    server: Studio  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self._is_known():
            return self._say(401, {"detail": "Invalid token."})
        path, _, query = self.path.partition("?")
        if path == "/api/users/":
            return self._say(200, [{"id": 1, "email": "ann@example.org"}])
        if path.endswith("/export"):
            return self._say(200, self.server.tasks)
        if path.endswith("/file-uploads"):
            wanted = json.loads(query.removeprefix("ids=").replace("%5B", "[").replace("%5D", "]"))
            files = [{"id": n, "file": f"upload/1/abc-{self.server.uploads[n - 1][0]}"} for n in wanted]
            return self._say(200, files)
        if re.fullmatch(r"/api/projects/1/", path) and self.server.projects:
            labels = re.findall(r'Choice value="([^"]*)"', self.server.projects[0]["label_config"])
            return self._say(200, {"parsed_label_config": {"class": {"labels": labels}}})
        if path == "/moved/api/users/" or path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "http://example.org/")
            self.end_headers()
            return None
        return self._say(404, None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/token/refresh/":
            if json.loads(body)["refresh"] != PERSONAL:
                return self._say(401, {"detail": "Token is invalid"})
            self.server.access.append(f"access{len(self.server.access)}")
            return self._say(200, {"access": self.server.access[-1]})
        if not self._is_known():
            return self._say(401, {"detail": "Invalid token."})
        if self.path == "/api/projects/":
            self.server.projects.append(json.loads(body))
            return self._say(201, {"id": len(self.server.projects)})
        if "commit_to_project=false" in self.path:
            return self._upload(body)
        self.server.tasks += json.loads(body)
        return self._say(201, {"task_count": len(self.server.tasks)})

    def _upload(self, body: bytes) -> None:
        if self.server.fails_after is not None and len(self.server.uploads) >= self.server.fails_after:
            return self._say(500, {"detail": "out of order"})
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        numbers = []
        for part in message_from_bytes(head + body).get_payload():
            assert not isinstance(part, str)
            self.server.uploads.append((part.get_filename() or "", part.get_payload(decode=True)))  # pyright: ignore
            numbers.append(len(self.server.uploads))
        return self._say(201, {"file_upload_ids": numbers})

    def _is_known(self) -> bool:
        given = self.headers.get("Authorization", "")
        return given == f"Token {LEGACY}" or given in [f"Bearer {token}" for token in self.server.access[-1:]]

    def _say(self, code: int, value: Any) -> None:
        text = b"<html>" if value is None else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def running() -> Iterator[Studio]:
    studio = Studio()
    thread = Thread(target=studio.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield studio
    finally:
        studio.shutdown()
        thread.join()
        studio.server_close()
