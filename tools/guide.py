"""Runs the commands of a guide, with a simulated annotator at the real labeling page.

    python tools/guide.py [ten-minutes] [--folder FOLDER] [--shots FOLDER] [--images FOLDER] [--budget 40]
    python tools/guide.py photographs --data DATA

Runs the commands of the guide in an empty folder; for `rarefish label`, tools/annotator.py uses the real page. With
--images, another folder with pool, validation, test and answers.csv replaces the images of the guide. --data is the
folder that the guide calls DATA.
"""

import argparse
import csv
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from annotator import label_all

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"
Annotate = Callable[[Path, dict[str, str], Path | None], int]


def commands(guide: str) -> list[list[str]]:
    """Returns all commands of a guide, in order, except the installation."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]
    return [line for line in lines if line[0] != "pip"]


def follow(
    folder: Path,
    images: Path | None = None,
    shots: Path | None = None,
    budget: str | None = None,
    start: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run,
    guide: str = "ten-minutes",
    data: Path | None = None,
    annotators: Iterator[Annotate] | None = None,
) -> dict[str, Any]:
    """Runs the whole guide and returns the summary of the workspace.

    Args:
        folder: An empty folder in which the commands run.
        images: Takes the place of the images that the guide makes.
        shots: Folder for pictures of the labeling page.
        budget: Takes the place of the budgets in the guide.
        start: Another way to run a command.
        guide: The name of the guide.
        data: The folder that the guide calls DATA.
        annotators: Who labels each round; by default a simulated annotator at the real page.
    """
    if images:
        (folder / "images").symlink_to(images.resolve())
    for command in commands(guide):
        if budget and "--budget" in command:
            command[command.index("--budget") + 1] = budget
        if data:
            command = [word.replace("DATA", str(data.resolve())) for word in command]
        print("$", shlex.join(command), flush=True)
        began, used = time.monotonic(), cpu_seconds()
        if command[:2] == ["rarefish", "label"]:
            with (folder / "images" / "answers.csv").open(newline="") as file:
                answers = {row["path"]: row["label"] for row in csv.DictReader(file)}
            annotate = next(annotators) if annotators else label_all
            print(f"{annotate(folder / 'work', answers, shots)} images answered.", flush=True)
        elif not (images and command[0] == "python"):
            run(command, folder, start)
        spent = f"{time.monotonic() - began:.1f} s, {cpu_seconds() - used:.1f} s of CPU time"
        print(f"# {spent}", flush=True)
    told = start([*RAREFISH, "status", "work", "--json"], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


def recall_on_test_set(printed: str) -> list[float]:
    """Returns the mean recall in percent that each `rarefish evaluate` has printed."""
    return [float(found) for found in re.findall(r"^accuracy .*mean recall ([\d.]+)%$", printed, flags=re.MULTILINE)]


def cpu_seconds() -> float:
    """Returns the CPU time that finished child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


RAREFISH = [sys.executable, "-m", "rarefish"]


def run(command: list[str], folder: Path, start: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    name, *rest = command
    own = {"rarefish": RAREFISH, "python": [sys.executable, str(ROOT / rest[0])]}[name]
    arguments = rest if name == "rarefish" else rest[1:]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    start([*own, *arguments], cwd=folder, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guide", nargs="?", default="ten-minutes", choices=["ten-minutes", "photographs"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--budget", help="budget per round [default: as in the guide]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        found = follow(
            *(folder, arguments.images, arguments.shots, arguments.budget),
            guide=arguments.guide,
            data=arguments.data,
        )
        for training in found["trainings"]:
            print(training["labels_spent"], "labels: mean recall", round(training["balanced"], 3))


if __name__ == "__main__":
    main()
