"""kill -9 at random moments in every command of a workspace; what was answered must be there, once, and work goes on.

python -m tests.crashes --times 50        prints a line for each kill and, at the end, what became of the workspace
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError

from rarefish.workspace.answers import answer, take, votes
from rarefish.workspace.store import Store, open_store
from rarefish.workspace.verification import verify
from tests import forked_processes
from tests.workspaces import CLASSES, make_images

TOKEN = "token-of-the-crash-test"
USUAL_S = {"label": 0.5, "train": 1.0}
"""How long a command takes that was not run to its end before; others, three seconds."""
QUICK = ("--workers", "0", "--device", "cpu")


class Trial:
    """A workspace, and all labels that somebody was told are kept."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.work, self.rng = folder, folder / "work", random.Random(seed)
        self.kept: dict[int, int] = {}
        self.lasts: dict[str, float] = {}
        self.backups: dict[Path, dict[int, int]] = {}
        make_images(folder, pool=400, trusted=8)

    @property
    def store(self) -> Store:
        return open_store(self.work)

    def command(self, name: str) -> list[str]:
        folders = ["--pool", str(self.folder / "pool"), "--validation", str(self.folder / "validation")]
        arguments = {
            "init": [*folders, "--model", "lenet", "--size", "28x28", "--jobs", "1"],
            "select": ["--budget", "12", "--batch-size", "64", "--workers", "0", "--shard", "100"],
            "train": [*QUICK, "--epochs", "8"],
            "evaluate": [*QUICK],
            "next": [*QUICK, "--budget", "12", "--json"],
            "report": [],
            "status": [],
            "check": ["--deep"],
            "export": ["--format", "coco", "--output", str(self.folder / "out.json")],
            "backup": [str(self.folder / f"backup-{len(self.backups) - 1}")],
            "label": [],
        }[name]
        return [sys.executable, "-m", "rarefish", name, str(self.work), *arguments]

    def run(self, name: str) -> None:
        """To the end, as a person would after a crash."""
        began = time.monotonic()
        done = forked_processes.run(self.command(name), capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        self.lasts[name] = time.monotonic() - began

    def kill(self, name: str) -> float:
        """Somewhere between its start and a little after its usual end."""
        wait = self.rng.uniform(0, 1.1 * self.lasts.get(name, USUAL_S.get(name, 3.0)))
        if name == "label":
            self._kill_page(wait)
        else:
            process = forked_processes.Popen(self.command(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(wait)
            process.kill()
            process.wait()
        return wait

    def expect_backup(self) -> None:
        """The next backup has all labels of now, or there is none."""
        self.backups[self.folder / f"backup-{len(self.backups)}"] = dict(self.kept)

    def _kill_page(self, wait: float) -> None:
        """Answers as fast as the page takes them; only those it said yes to count."""
        process = forked_processes.Popen(
            self.command("label"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RAREFISH_TOKEN": TOKEN},
            text=True,
            has_torch=False,
        )
        assert process.stdout is not None
        address = process.stdout.readline().split("/?token")[0]
        until = time.monotonic() + wait
        timer = subprocess.Popen(["sh", "-c", f"sleep {wait}; kill -9 {process.pid}"])
        try:
            while time.monotonic() < until:
                for task in post(address, "next", {"who": "ann", "count": 3, "held": []})["tasks"]:
                    number = self.rng.randrange(len(CLASSES))
                    body = {"image": task["image"], "who": "ann", "answer": "class", "class": number}
                    post(address, "answer", {**body, "ticket": f"ann-{task['image']:08d}", "seconds": 0.1})
                    self.kept[task["image"]] = number
                else:
                    if not open_store(self.work) or not take_left(self.store):
                        break
        except HTTPError:
            raise  # a refusal
        except OSError:
            pass  # killed
        timer.wait()
        process.wait()
        process.stdout.close()

    def label_rest(self) -> None:
        while tasks := take(self.store, "ann", 20):
            for task in tasks:
                number = self.rng.randrange(len(CLASSES))
                answer(self.store, task.image, "ann", "class", number, f"ann-{task.image}")
                self.kept[task.image] = number

    def wrong(self) -> list[str]:
        """What was lost, doubled or damaged."""
        found = lost(self.store, self.kept)
        for target, kept in self.backups.items():
            if target.exists():
                found += [f"{target.name}: {sentence}" for sentence in lost(open_store(target), kept)]
        with self.store.reading() as connection:
            rows = connection.execute("SELECT image, count(*) FROM label GROUP BY image HAVING count(*) > 1").fetchall()
        return found + [f"image {image} has {count} labels" for image, count in rows] + verify(self.store)


def lost(store: Store, kept: dict[int, int]) -> list[str]:
    """A sentence for each label that the store does not have, or not once."""
    said = votes(store)
    return [f"the label of {image} is lost" for image, number in kept.items() if said.get(image, {}).get(number) != 1]


def take_left(store: Store) -> bool:
    with store.reading() as connection:
        return bool(connection.execute("SELECT 1 FROM pick WHERE is_open LIMIT 1").fetchone())


def post(address: str, what: str, body: dict[str, object]) -> dict[str, list[dict[str, int]]]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/api/{what}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


def crash(folder: Path, times: int, seed: int = 0, commands: Sequence[str] = ()) -> list[str]:
    """A line for each kill; an error where anything is wrong after one."""
    trial, lines = Trial(folder, seed), []
    process = forked_processes.Popen(trial.command("init"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(trial.rng.uniform(0.1, 0.6))
    process.kill()
    process.wait()
    trial.run("init")
    steps = list(commands) or [
        "init",
        "select",
        "label",
        "train",
        "evaluate",
        "next",
        "report",
        "status",
        "check",
        "export",
        "backup",
    ]
    for number in range(times):
        name = steps[number % len(steps)]
        prepare(trial, name)
        waited = trial.kill(name)
        wrong = trial.wrong()
        lines.append(
            f"{number + 1:3d}  {name:<9} killed after {waited:5.2f} s  {len(trial.kept):4d} labels  {wrong or 'clean'}"
        )
        print(lines[-1], flush=True)
        assert not wrong, wrong
    trial.label_rest()
    for name in ("train", "select"):
        trial.run(name)
    trial.label_rest()
    trial.expect_backup()
    for name in ("train", "evaluate", "report", "export", "check", "backup"):
        trial.run(name)
    assert list(trial.backups)[-1].exists()
    assert not trial.wrong(), trial.wrong()
    lines.append(
        f"{times} kills; {len(trial.kept)} labels, none lost, none double; the workspace is whole and work goes on"
    )
    print(lines[-1], flush=True)
    return lines


def prepare(trial: Trial, name: str) -> None:
    """What the command needs to have something to do."""
    if name == "backup":
        trial.expect_backup()
    if name in ("label", "train", "evaluate", "report", "export") and not take_left(trial.store):
        trial.run("select")
    if name in ("train", "evaluate", "report", "export"):
        trial.label_rest()
    if name in ("evaluate", "report"):
        with trial.store.reading() as connection:
            if not connection.execute("SELECT 1 FROM training").fetchone():
                trial.run("train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        crash(Path(folder), arguments.times, arguments.seed)


if __name__ == "__main__":
    main()
