"""Response times of the labeling server over HTTP, with thousands of images in the queue.

    python benchmarks/page.py [--picks 10000] [--answers 500] [--output benchmarks/results/page.json]

The workspace is on disk, and every answer is on disk before it is confirmed. The worst case is also measured: each
image needs two answers, and this annotator has already labeled half of the queue. Medians are reported; the goal is
50 ms.
"""

import argparse
import json
import platform
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import starlette
import uvicorn

from rarefish.labeling.server import listen, make_app
from rarefish.labeling.tokens import make_keys
from rarefish.workspace.store import Store, create_store, now

GOAL_MS = 50
TOKEN = "a-token-for-measuring"
NEXT, NEXT_LATE = "/api/next", "/api/next after half of the queue"


def make_queue(folder: Path, picks: int) -> Store:
    """Returns a workspace with this many picks; the image files are not read and need not exist."""
    store = create_store(folder, ("cat", "dog", "owl"))
    store.set(people_per_image=2)
    with store.writing() as connection:
        connection.execute("INSERT INTO round VALUES (1, ?, '{}')", (now(),))
        connection.executemany(
            "INSERT INTO image (id, part, path, hash, bytes, modified, width, height, state) "
            "VALUES (?, 'pool', ?, '', 0, 0, 1, 1, 'ready')",
            [(number, str(number).encode()) for number in range(1, picks + 1)],
        )
        connection.executemany(
            "INSERT INTO pick VALUES (?, 1, ?, NULL, NULL, 0.5, 1, '[[1, 0.7], [2, 0.2]]', 1)",
            [(number, number) for number in range(1, picks + 1)],
        )
        connection.executemany(
            "INSERT INTO label (image, round, who, made_at, answer, class, ticket) "
            "VALUES (?, 1, 'Ann', ?, 'class', 1, ?)",
            [(number, now(), f"before-{number}") for number in range(1, picks // 2 + 1)],
        )
    return store


@contextmanager
def served(store: Store) -> Iterator[HTTPConnection]:
    bound = listen(store, "127.0.0.1", 0)
    app = make_app(store, make_keys(TOKEN, store.identity()), ("127.0.0.1",))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    connection = HTTPConnection("127.0.0.1", bound.getsockname()[1])
    try:
        yield connection
    finally:
        connection.close()
        server.should_exit = True
        thread.join()
        bound.close()


def ask(connection: HTTPConnection, method: str, path: str, body: object = None) -> tuple[float, Any]:
    """Returns the milliseconds and the response."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    began = time.perf_counter()
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    content = reply.read()
    took = 1000 * (time.perf_counter() - began)
    assert reply.status == 200, content
    return took, json.loads(content)


def measure(picks: int, answers: int, folder: Path) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {name: [] for name in (NEXT, NEXT_LATE, "/api/answer", "/api/progress")}
    with served(make_queue(folder / "work", picks)) as connection:
        held: dict[str, list[int]] = {"Ann": [], "Bo": []}
        for place in range(answers):
            who = "Ann" if place % 2 else "Bo"  # for Ann the first half of the queue has to be passed over
            took, said = ask(connection, "POST", "/api/next", {"who": who, "count": 2, "held": held[who][-6:]})
            times[NEXT_LATE if who == "Ann" else NEXT].append(took)
            image = said["tasks"][0]["image"]
            held[who].append(said["tasks"][-1]["image"])
            given = {"image": image, "who": who, "answer": "class", "class": 1, "ticket": f"ticket-{place:06d}"}
            times["/api/answer"].append(ask(connection, "POST", "/api/answer", given)[0])
            if place % 10 == 0:
                times["/api/progress"].append(ask(connection, "GET", f"/api/progress?who={who}")[0])
    return [as_row(name, values, picks) for name, values in times.items()]


def as_row(name: str, values: list[float], picks: int) -> dict[str, Any]:
    return {
        "name": f"{name}, {picks:,} picks queued, median",
        "value": round(statistics.median(values), 2),
        "unit": "ms",
        "baseline": {"goal": GOAL_MS},
        "ratio": {"goal": round(GOAL_MS / statistics.median(values), 1)},
        "floor": None,
        "device": "cpu",
        "versions": {
            "python": platform.python_version(),
            "starlette": starlette.__version__,
            "uvicorn": uvicorn.__version__,
            "sqlite": sqlite3.sqlite_version,
        },
        "command": "python benchmarks/page.py",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picks", type=int, default=10_000)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/page.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(given.picks, given.answers, Path(folder))
    for row in rows:
        print(f"{row['name']}: {row['value']} ms")
    given.output.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
