"""The guide "ten minutes with your own images", command by command, with a simulated annotator at the real page.

    python tools/guide.py [--folder FOLDER] [--shots FOLDER] [--images FOLDER] [--budget 40]

Runs what stands in the guide's blocks in an empty folder; where it says `rarefish label`, tools/annotator.py sits down
at the page. With --images another folder with pool, validation, test and answers.csv takes the place of the digits.
"""

import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from annotator import label_all

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "guides" / "ten-minutes.md"


def commands() -> list[list[str]]:
    """Returns all commands of the guide, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


def follow(
    folder: Path, images: Path | None = None, shots: Path | None = None, budget: str | None = None
) -> dict[str, Any]:
    """Runs the whole guide and returns the summary of the workspace."""
    if images:
        (folder / "images").symlink_to(images.resolve())
    for command in commands():
        if budget and "--budget" in command:
            command[command.index("--budget") + 1] = budget
        print("$", shlex.join(command), flush=True)
        if command[:2] == ["rarefish", "label"]:
            with (folder / "images" / "answers.csv").open(newline="") as file:
                answers = {row["path"]: row["label"] for row in csv.DictReader(file)}
            print(f"{label_all(folder / 'work', answers, shots)} images answered, one key each.", flush=True)
        elif not (images and command[0] == "python"):
            run(command, folder)
    told = subprocess.run(
        [*RAREFISH, "status", "work", "--json"], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(told.stdout)


RAREFISH = [sys.executable, "-m", "rarefish"]


def run(command: list[str], folder: Path) -> None:
    name, *rest = command
    own = {"rarefish": RAREFISH, "python": [sys.executable, str(ROOT / rest[0])]}[name]
    arguments = rest if name == "rarefish" else rest[1:]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*own, *arguments], cwd=folder, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--budget", help="budget per round [default: 40, as in the guide]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        found = follow(folder, arguments.images, arguments.shots, arguments.budget)
        for training in found["trainings"]:
            print(training["labels_spent"], "labels: mean recall", round(training["balanced"], 3))


if __name__ == "__main__":
    main()
