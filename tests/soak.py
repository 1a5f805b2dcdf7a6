"""A labeling server under steady work and a flood beside it: nothing is lost or doubled, and its memory stays flat.

python -m tests.soak --minutes 30 --output benchmarks/results/soak.csv

Four annotators take images, answer and undo over HTTP, with sessions as their browsers would have. Beside them come
half-open connections, wrong tokens, bodies that are too large and requests for images. Everything stays on 127.0.0.1,
is bounded in number and rate, and stops by itself. The server's memory, open files and threads are noted on the way. At
the end every acknowledged answer must be in the store exactly once. Linux only: it reads /proc.
"""

import argparse
import csv
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rarefish.workspace.store import Store
from rarefish.workspace.verification import verify
from tests.labeling.serving import TOKEN, Client, Running, start, stop
from tests.workspaces import CLASSES, add_round, make_workspace

PEOPLE = ("Ann", "Bo", "Cy", "Di")
ROUND = 200
"""Images of a round; another round is chosen when half of them are left."""
UNDO_SHARE = 0.08
MOST_FILES = 400
"""The server's limit of open files: it has room for 200 connections, and must close some of the flood's for others."""
MOST_HALF_OPEN = 300
GROWTH, GROWTH_MB = 1.10, 10.0
"""Memory is flat if the last quarter's median is at most so many times the second quarter's, and so many MB more."""


@dataclass
class Annotator:
    """A person at work: what she sent, and what the server has acknowledged."""

    server: Running
    who: str
    pace_s: float
    rng: random.Random
    given: list[tuple[int, int, int]] = field(default_factory=list)
    """Acknowledged answers that stand: (row, image, class), oldest first."""
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Every acknowledged ticket, with its image and what was sent."""
    wrong: list[str] = field(default_factory=list)
    trouble: Counter[str] = field(default_factory=Counter)

    def work(self, end: threading.Event) -> None:
        client = Client(self.server.client.port, "")
        session = {"Authorization": "", "Cookie": enter(self.server)}
        ahead: list[int] = []
        while not end.wait(self.pace_s * self.rng.uniform(0.5, 1.5)):
            if self.given and self.rng.random() < UNDO_SHARE:
                self.undo(client, session)
            if len(ahead) < 3:
                asked = {"who": self.who, "count": 6 - len(ahead), "held": ahead}
                ahead += [task["image"] for task in self.ask(client, session, "next", asked)["tasks"]]
            if ahead:
                self.answer(client, session, ahead.pop(0))
        client.close()

    def answer(self, client: Client, session: dict[str, str], image: int) -> None:
        self.send(client, session, f"/image/{image}?size=320")
        number, ticket = self.rng.randrange(len(CLASSES)), f"{self.who}-answer-{len(self.rows):08d}"
        body = {"image": image, "who": self.who, "answer": "class", "class": number, "ticket": ticket}
        said = self.ask(client, session, "answer", body)
        if self.rng.random() < 0.1 and self.ask(client, session, "answer", body)["label"] != said["label"]:
            self.wrong.append(f"{ticket} was sent twice and became two labels")
        self.given.append((said["label"], image, number))
        self.rows[ticket] = (image, "class")

    def undo(self, client: Client, session: dict[str, str]) -> None:
        ticket = f"{self.who}-undo-{len(self.rows):08d}"
        said = self.ask(client, session, "undo", {"who": self.who, "ticket": ticket})
        _, image, _ = self.given.pop()
        if said["task"]["image"] != image:
            self.wrong.append(f"{ticket} took back image {said['task']['image']}, not {image}")
        self.rows[ticket] = (image, "undo")

    def ask(self, client: Client, session: dict[str, str], what: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer; what it could not take is sent again, as the page does."""
        content = json.dumps(body).encode()
        while (reply := self.send(client, session, f"/api/{what}", content)) is None:
            time.sleep(0.2)
        return json.loads(reply)

    def send(self, client: Client, session: dict[str, str], path: str, content: bytes | None = None) -> bytes | None:
        headers = session if content is None else {**session, "Content-Type": "application/json"}
        try:
            reply = client.ask("GET" if content is None else "POST", path, content, headers)
        except (OSError, HTTPException) as error:
            self.trouble[type(error).__name__] += 1
            return None
        if reply.status != 200:
            self.trouble[str(reply.status)] += 1
        if 400 <= reply.status < 500 and reply.status != 429:
            self.wrong.append(f"{path} was refused: {reply.content[:200]!r}")
            raise RuntimeError(self.wrong[-1])
        return reply.content if reply.status == 200 else None


def enter(server: Running) -> str:
    """A session from the link; while wrong tokens come from the same address, links have to wait."""
    client = Client(server.client.port, "")
    while (reply := client.get(f"/?token={TOKEN}", Authorization="")).status == 429:
        time.sleep(0.2)
    client.close()
    return reply.headers["set-cookie"].partition(";")[0]


class Flood:
    """Requests that nobody wants, some per second of each kind; what came back is counted."""

    def __init__(self, server: Running, images: int) -> None:
        self.server, self.images, self.session = server, images, enter(server)
        self.statuses: Counter[str] = Counter()

    def run(self, end: threading.Event) -> list[threading.Thread]:
        kinds = (self.half_open, self.wrong_token, self.large_body, self.image, self.left_image)
        threads = [threading.Thread(target=self.repeat, args=(kind, end), daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        return threads

    def repeat(self, kind: Any, end: threading.Event) -> None:
        client, lines, number = Client(self.server.client.port, ""), [], 0
        while not end.wait(0.05):
            number += 1
            try:
                self.statuses[f"{kind.__name__}: {kind(client, lines, number)}"] += 1
            except (OSError, HTTPException):
                self.statuses[f"{kind.__name__}: closed"] += 1
        client.close()
        for line in lines:
            line.close()

    def half_open(self, client: Client, lines: list[socket.socket], number: int) -> str:
        """Ten connections with half a request or none; the oldest of too many are given up."""
        for _ in range(10):
            lines.append(socket.create_connection(("127.0.0.1", client.port), timeout=5))
            lines[-1].sendall(b"GET /api/work HTTP/1.1\r\nHost: loc"[: 33 * (number % 2)])
        for line in lines[:-MOST_HALF_OPEN]:
            line.close()
        del lines[:-MOST_HALF_OPEN]
        return "open"

    def wrong_token(self, client: Client, lines: list[socket.socket], number: int) -> int:
        if number % 2:
            return client.get(f"/?token=wrong-token-{number:08d}", Authorization="").status
        return client.get("/api/work", Authorization=f"Bearer wrong-token-{number:08d}").status

    def large_body(self, client: Client, lines: list[socket.socket], number: int) -> int:
        """Too large by its header, or in chunks that go on until the server has enough."""
        if number % 2:
            headers = {"Authorization": "", "Cookie": self.session, "Content-Type": "application/json"}
            return client.ask("POST", "/api/next", b" " * 200_000, headers).status
        with socket.create_connection(("127.0.0.1", client.port), timeout=5) as line:
            head = f"POST /api/next HTTP/1.1\r\nHost: localhost\r\nCookie: {self.session}\r\n"
            line.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            with suppress(OSError):
                for _ in range(20):
                    line.sendall(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
            return int(line.recv(64).split()[1])

    def image(self, client: Client, lines: list[socket.socket], number: int) -> int:
        path = f"/image/{number % self.images + 1}?size={(100, 500, 3000)[number % 3]}"
        return client.get(path, Authorization="", Cookie=self.session).status

    def left_image(self, client: Client, lines: list[socket.socket], number: int) -> str:
        """Whoever asks does not wait for the image."""
        with socket.create_connection(("127.0.0.1", client.port), timeout=5) as line:
            path = f"/image/{number % self.images + 1}?size=640"
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {self.session}\r\n\r\n".encode())
        return "left"


@dataclass(frozen=True)
class Sample:
    """What the server has at one moment."""

    seconds: float
    rss_mb: float
    files: int
    threads: int
    answers: int
    undos: int
    flood: int


def sample(server: Running, began: float, people: list[Annotator], flood: Flood) -> Sample:
    place = Path(f"/proc/{server.process.pid}")
    lines = (line.partition(":") for line in (place / "status").read_text().splitlines())
    status = {name: value for name, _, value in lines}
    kinds = Counter(kind for person in people for _, kind in list(person.rows.values()))
    return Sample(
        seconds=round(time.monotonic() - began, 1),
        rss_mb=round(int(status["VmRSS"].split()[0]) / 1024, 1),
        files=len(list((place / "fd").iterdir())),
        threads=int(status["Threads"]),
        answers=kinds["class"],
        undos=kinds["undo"],
        flood=sum(flood.statuses.copy().values()),
    )


def soak(folder: Path, seconds: float, pace_s: float, every_s: float, output: Path | None = None) -> str:
    """One line that says what came of it; an error if anything was lost, doubled, or grows."""
    images = max(2 * ROUND, int(1.3 * len(PEOPLE) * seconds / pace_s))
    store = make_workspace(folder, pool=images, picks=ROUND)
    log = folder / "server.log"
    server = start(store.folder, log=log, files=MOST_FILES)
    end, end_of_flood = threading.Event(), threading.Event()
    try:
        people = [Annotator(server, who, pace_s, random.Random(who)) for who in PEOPLE]
        flood = Flood(server, ROUND)
        workers = [threading.Thread(target=person.work, args=(end,), daemon=True) for person in people]
        for worker in workers:
            worker.start()
        floods = flood.run(end_of_flood)
        samples = watch(server, store, seconds, every_s, people, flood, output)
        end.set()
        for worker in workers:
            worker.join(120)
        end_of_flood.set()
        for thread in floods:
            thread.join(120)
    finally:
        end.set()
        end_of_flood.set()
        stop(server)
    wrong = [*find_wrong(store, people), *find_growth(samples), *find_noise(log)]
    assert not wrong, wrong
    return summarize(samples, people, flood)


def watch(
    server: Running,
    store: Store,
    seconds: float,
    every_s: float,
    people: list[Annotator],
    flood: Flood,
    output: Path | None,
) -> list[Sample]:
    """Samples until the time is over; a new round is chosen whenever few images are left."""
    began, samples = time.monotonic(), list[Sample]()
    with open(output, "w", newline="") if output else nullcontext() as file:
        while time.monotonic() - began < seconds:
            time.sleep(min(every_s, 1.0))
            with store.reading() as connection:
                (left,) = connection.execute("SELECT count(*) FROM pick WHERE is_open").fetchone()
            if left < ROUND // 2:
                add_round(store, ROUND)
            if samples and time.monotonic() - began - samples[-1].seconds < every_s:
                continue
            samples.append(sample(server, began, people, flood))
            if file is not None:
                writer = csv.DictWriter(file, list(asdict(samples[-1])))
                if len(samples) == 1:
                    writer.writeheader()
                writer.writerow(asdict(samples[-1]))
                file.flush()
            print(", ".join(f"{name} {value}" for name, value in asdict(samples[-1]).items()), flush=True)
    return samples


def find_wrong(store: Store, people: list[Annotator]) -> list[str]:
    """What was lost, doubled, or is not what was acknowledged."""
    with store.reading() as connection:
        rows = connection.execute("SELECT id, ticket, image, who, answer, class FROM label").fetchall()
        current = connection.execute("SELECT id, image, class, who FROM current_answer").fetchall()
    kept = Counter((row["ticket"], row["who"], row["image"], row["answer"]) for row in rows)
    sent = {(ticket, one.who, image, kind): 1 for one in people for ticket, (image, kind) in one.rows.items()}
    given = {(row, image, number, one.who) for one in people for row, image, number in one.given}
    wrong = [f"{key[0]} was acknowledged and is not there" for key in sent if key not in kept]
    wrong += [f"{key[0]} is there and was not acknowledged" for key in kept if key not in sent]
    wrong += [f"{key[0]} is there {count} times" for key, count in kept.items() if count > 1]
    if given != {tuple(row) for row in current}:
        wrong.append(f"the current answers differ: {list(given ^ {tuple(row) for row in current})[:5]}")
    return [*wrong, *(said for person in people for said in person.wrong), *verify(store)]


def quarters(samples: list[Sample]) -> tuple[float, float]:
    """Medians of memory in the second and the last quarter, in MB."""
    memory, size = [one.rss_mb for one in samples], max(1, len(samples) // 4)
    return statistics.median(memory[size : 2 * size] or memory), statistics.median(memory[-size:])


def find_growth(samples: list[Sample]) -> list[str]:
    second, last = quarters(samples)
    is_flat = last <= GROWTH * second + GROWTH_MB
    return [] if is_flat else [f"memory grew from {second:.1f} MB in the second quarter to {last:.1f} MB in the last"]


def find_noise(log: Path) -> list[str]:
    text = log.read_text()
    return [f"the server's log: {text[:2000]}"] if "Traceback" in text or len(text) > 100_000 else []


def summarize(samples: list[Sample], people: list[Annotator], flood: Flood) -> str:
    second, last = quarters(samples)
    trouble = sum((person.trouble for person in people), Counter[str]())
    tickets = sum(len(person.rows) for person in people)
    print(f"flood: {dict(sorted(flood.statuses.items()))}; sent again: {dict(trouble)}", flush=True)
    return (
        f"{samples[-1].seconds / 60:.1f} minutes: {tickets:,} answers and undos, none lost, none double; "
        f"{sum(flood.statuses.values()):,} requests of the flood; memory {second:.1f} MB in the second quarter, "
        f"{last:.1f} MB in the last; at most {max(one.files for one in samples)} files and "
        f"{max(one.threads for one in samples)} threads"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--pace", type=float, default=0.5, help="seconds per answer of one annotator")
    parser.add_argument("--output", type=Path, help="a CSV file for the samples")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(soak(Path(folder), 60 * given.minutes, given.pace, 10.0, given.output), flush=True)
        except AssertionError as error:
            sys.exit(f"The soak failed: {error}")


if __name__ == "__main__":
    main()
