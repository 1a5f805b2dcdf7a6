"""Round trip with a real Label Studio server on loopback: python tools/label_studio.py [FOLDER_FOR_ITS_ENVIRONMENT].

Installs the package label-studio into a separate environment, starts it with an empty data folder, pushes picks,
annotates them through its API, pulls the answers and compares them, once with a legacy token and once with a personal
one.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.exchange.labeled_workspaces import answers, asked, make_labeled, rows  # noqa: E402
from tests.workspaces import make_workspace  # noqa: E402

from rarefish.errors import RarefishError  # noqa: E402
from rarefish.exchange.exporter import export  # noqa: E402
from rarefish.exchange.formats.label_studio import find_answers, to_config  # noqa: E402
from rarefish.exchange.importer import import_parsed_labels  # noqa: E402
from rarefish.exchange.label_parsing import read_json  # noqa: E402
from rarefish.exchange.label_studio_api import Server, call  # noqa: E402
from rarefish.exchange.label_studio_sync import pull, push  # noqa: E402
from rarefish.workspace.store import Store  # noqa: E402

USER = "ann@example.org"
SAID = ["cat", "dog", "owl", "(unsure)", "(none of these)", None, "cat", "owl"]
"""The annotator's answers to the picks in turn; None is a skip."""
KINDS = {"cat": ("class", 0), "dog": ("class", 1), "owl": ("class", 2)}
KINDS |= {"(unsure)": ("unsure", None), "(none of these)": ("none", None)}
PATIENCE_S = 240


def main(folder: Path) -> None:
    program = install(folder / "environment")
    with TemporaryDirectory() as work, serving(program, Path(work)) as (url, token):
        print("server:", call(Server(url, token), "/api/version")["label-studio-os-package"]["version"])
        picks_there_and_back(make_workspace(Path(work) / "legacy", pool=12, trusted=2, picks=8), url, token, "legacy")
        personal = call(Server(url, token), "/api/token/", {})["token"]
        picks_there_and_back(make_workspace(Path(work) / "jwt", pool=12, trusted=2, picks=8), url, personal, "personal")
        files_there_and_back(make_labeled(Path(work) / "files"), url, token, Path(work) / "tasks")
        mistakes(make_workspace(Path(work) / "mistakes", pool=6, trusted=2, picks=2), url, token)
    print("all equal")


def install(environment: Path) -> Path:
    """Returns the Label Studio program of a new or an existing environment."""
    program = environment / "bin" / "label-studio"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "pip"), "install", "--quiet", "label-studio"]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    return program


@contextmanager
def serving(program: Path, work: Path) -> Iterator[tuple[str, str]]:
    """Starts a server with one user that may serve files below work/files; yields its URL and legacy token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = work / "data"
    data.mkdir()
    token, url = secrets.token_hex(20), f"http://127.0.0.1:{port}"
    command = [str(program), "start", "--no-browser", "--internal-host", "127.0.0.1", "--port", str(port)]
    command += ["--data-dir", str(data), "--username", USER, "--password", secrets.token_urlsafe(12)]
    command += ["--user-token", token, "--enable-legacy-api-token"]
    quiet = {"COLLECT_ANALYTICS": "false", "LATEST_VERSION_CHECK": "false", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": ""}
    local = {"LOCAL_FILES_SERVING_ENABLED": "true", "LOCAL_FILES_DOCUMENT_ROOT": str(work / "files"), "HOME": str(data)}
    with (work / "server.log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | quiet | local, stdout=log, stderr=log)
    try:
        wait(Server(url, token), process)
        yield url, token
    finally:
        process.terminate()
        process.wait(30)


def wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    start = time.monotonic()
    while True:
        try:
            call(server, "/api/projects/")
            return
        except RarefishError:
            if process.poll() is not None or time.monotonic() - start > PATIENCE_S:
                raise
            time.sleep(1)


def picks_there_and_back(store: Store, url: str, token: str, kind: str) -> None:
    server, done = Server(url, token), push(store, url, token)
    again = push(store, url, token, done.project)
    print(f"{kind} token: {done.sent} picks pushed, {again.sent} when pushed again, {again.already} there already")
    tasks = read_tasks(server, done.project)
    assert [task["meta"]["rarefish"]["image"] for task in tasks] == asked(store)
    assert all(task["total_predictions"] == 1 for task in tasks)
    for task, said, file in zip(tasks, SAID, files(store), strict=True):
        assert fetch(url, call_header(token, server), task["data"]["image"]) == file.read_bytes()
        call(server, f"/api/tasks/{task['id']}/annotations/", annotation(said))
    print(f"{kind} token: {len(tasks)} images served byte for byte, annotated through the API")
    got, twice = pull(store, url, token, done.project, "me"), pull(store, url, token, done.project, "me")
    sent = {(image, USER, *KINDS[said]) for image, said in zip(asked(store), SAID, strict=True) if said}
    assert answers(store) == sent and (got.count, got.unknown, got.conflicts) == (len(SAID), (), ())
    assert twice.count == 0 and len(rows(store)) == len(SAID)
    print(f"{kind} token: {got.count} annotations pulled, equal; {twice.count} new when pulled again")


def files_there_and_back(store: Store, url: str, token: str, target: Path) -> None:
    """Checks that labels exported to Label Studio and imported again are unchanged."""
    server = Server(url, token)
    folder = export(store, "labels", "label-studio", target)
    project = call(server, "/api/projects/", {"title": "from files", "label_config": to_config(store.classes())})["id"]
    done = call(server, f"/api/projects/{project}/import", read_json(folder / "tasks.json"))
    print(f"files: Label Studio took {done['task_count']} tasks, {done['annotation_count']} annotations")
    tasks, before = read_tasks(server, project), rows(store)
    pool = store.settings()["pool_root"]
    call(server, "/api/storages/localfiles", {"project": project, "path": pool, "use_blob_urls": True})
    served = [fetch(url, f"Token {token}", task["data"]["image"]) for task in tasks]
    assert served == [file.read_bytes() for file in files(store)]
    print(f"files: {len(served)} images served as local files, byte for byte")
    same = import_parsed_labels(store, "label-studio", find_answers(tasks, store.classes(), {1: USER}), "me")
    assert (same.count, same.unknown, same.conflicts, rows(store)) == (0, (), (), before)
    print(f"files: its export read back, {same.already} the same, {same.count} new")


def mistakes(store: Store, url: str, token: str) -> None:
    nobody = "http://127.0.0.1:9"
    for address, key, project in ((url, "wrong", 1), (url, "a.b.c", 1), (nobody, token, 1), (url, token, 99)):
        try:
            pull(store, address, key, project, "me")
        except RarefishError as error:
            print(f"refused: {error}".replace(url, "URL"))
        else:
            raise AssertionError((address, project))


def read_tasks(server: Server, project: int) -> list[dict[str, Any]]:
    return call(server, f"/api/projects/{project}/export?exportType=JSON&download_all_tasks=true")


def annotation(said: str | None) -> dict[str, Any]:
    if said is None:
        return {"result": [], "was_cancelled": True}
    value = {"choices": [said]}
    return {"result": [{"from_name": "class", "to_name": "image", "type": "choices", "value": value}]}


def files(store: Store) -> list[Path]:
    root = Path(store.settings()["pool_root"])
    with store.reading() as connection:
        query = "SELECT path FROM pick JOIN image ON image.id = pick.image ORDER BY round, rank"
        return [root / os.fsdecode(path) for (path,) in connection.execute(query)]


def call_header(token: str, server: Server) -> str:
    return f"Bearer {server._access['token']}" if server.is_personal else f"Token {token}"


def fetch(url: str, authorization: str, path: str) -> bytes:
    with urlopen(Request(url + path, headers={"Authorization": authorization}), timeout=30) as response:
        return response.read()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as made:
            main(Path(made))
