"""Examples run as they stand, in an empty folder."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import forked_processes

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path, tmp_path: Path) -> None:
    run = subprocess.run if example.name == "02_make_folder.py" else forked_processes.run  # one with its imports
    done = run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    for line in shown_in_guide(example.name):  # numbers may differ a little between machines
        assert without_numbers(line) in map(without_numbers, done.stdout.splitlines())
    if example.name in RESULTS:
        RESULTS[example.name](done.stdout, tmp_path)


def without_numbers(line: str) -> str:
    return re.sub(r"\d+", "#", line)


def shown_in_guide(example: str) -> list[str]:
    """The output of an example that the guide shows: the first block of text after its name."""
    _, _, after = (EXAMPLES[0].parents[1] / "docs" / "guides" / "parts.md").read_text().partition(example)
    block = re.search(r"```text\n(.*?)```", after, re.DOTALL)
    return [line for line in block[1].splitlines() if line != "…"] if block else []


def check_selection(printed: str, folder: Path) -> None:
    assert (folder / "picks.csv").exists() and (folder / "picks.png").exists()


def check_detection(printed: str, folder: Path) -> None:
    """Rare objects and false boxes are found, no image is chosen twice, and all formats contain the same boxes."""
    missed, false = map(int, re.findall(r"(\d+) (?:objects are missed|boxes are false)", printed))
    assert missed >= 5 and false >= 5
    chosen = re.findall(r"^image (\d+): the box .* resembles the (missed star|false \w+) in validation", printed, re.M)
    names = [f"{number}.png" for number, _ in chosen]
    assert len(set(names)) == len(names) == 15 and min(names) >= "030.png"  # the first 30 are labeled
    assert {kind.split()[0] for _, kind in chosen} == {"missed", "false"}
    found, expected = re.findall(r"(\d+) of 15 chosen .* has ([\d.]+) on average", printed)[0]
    assert int(found) > 4 * float(expected) > 0

    coco = json.loads((folder / "coco.json").read_text())
    assert [image["file_name"] for image in coco["images"]] == names
    assert sorted(path.name for path in (folder / "to_label").iterdir()) == sorted(names)
    classes = {row["id"]: row["name"] for row in coco["categories"]}
    assert list(classes.values()) == ["circle", "square", "triangle", "star"]
    boxes = [(row["image_id"] - 1, classes[row["category_id"]], row["bbox"]) for row in coco["annotations"]]
    assert sum(name == "star" for _, name, _ in boxes) >= int(found) / 2
    cvat = [
        (int(image.get("id", "")), box.get("label"), [float(box.get(edge, "nan")) for edge in ("xtl", "ytl")])
        for image in ElementTree.parse(folder / "cvat.xml").iter("image")
        for box in image.iter("box")
    ]
    assert cvat == [(image, name, bbox[:2]) for image, name, bbox in boxes]
    tasks = json.loads((folder / "label_studio" / "tasks.json").read_text())
    values = [
        (number, region["value"])
        for number, task in enumerate(tasks)
        for prediction in task["predictions"]
        for region in prediction["result"]
    ]
    studio = [
        (n, v["rectanglelabels"][0], [v[key] * 96 / 100 for key in ("x", "y", "width", "height")]) for n, v in values
    ]
    assert studio == [(image, name, pytest.approx(bbox)) for image, name, bbox in boxes]


def check_video(printed: str, folder: Path) -> None:
    """Each shot is chosen at most once with groups, and not only without; rare shots are found."""
    table = re.findall(r"^(fisher|coverage) +(none|shots) +(\d+) +(\d+)$", printed, re.M)
    shots = {(method, groups): int(count) for method, groups, count, _ in table}
    assert len(shots) == 4 and shots["fisher", "shots"] == shots["coverage", "shots"] == 20 > shots["fisher", "none"]
    expected = float(re.findall(r"contains ([\d.]+) of the", printed)[0])
    assert all(int(count) > 2 * expected > 0 for *_, count in table)
    assert len(list((folder / "frames_to_label").glob("*.png"))) == 20


RESULTS: dict[str, Callable[[str, Path], None]] = {
    "01_select.py": check_selection,
    "03_detection.py": check_detection,
    "04_video.py": check_video,
}
"""What is checked of the output of an example and the files in its folder."""
