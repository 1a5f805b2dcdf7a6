"""A simulated annotator who uses the labeling page in Chromium with the keyboard, with answers from a CSV file.

    python tools/annotator.py WORKSPACE answers.csv [--shots FOLDER] [--name ann]

The CSV file has the columns path and label. The program starts `rarefish label`, reads which image the page shows,
presses the key of its class, and ends when the page says that no images are left. With --shots, it saves screenshots of
the pages: light and dark, at the widths of a desktop and a phone.
"""

import argparse
import csv
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from rarefish.workspace.answers import progress
from rarefish.workspace.store import Store, open_store

PLACE = "document.querySelector('#place').textContent"
SIZES = {"desk": (1280, 860), "phone": (390, 844)}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def label_all(workspace: Path, answers: dict[str, str], shots: Path | None = None, name: str = "ann") -> int:
    """Labels all waiting images and returns how many there were."""
    from playwright.sync_api import sync_playwright

    store = open_store(workspace)
    truth = {image: answers[path] for image, path in paths_of(store).items() if path in answers}
    with serving(workspace) as address, sync_playwright() as playwright:
        own = next((path for one in ("chromium", "chromium-browser") if (path := shutil.which(one))), None)
        browser = playwright.chromium.launch(executable_path=own, args=FLAGS)
        page = browser.new_page(viewport={"width": SIZES["desk"][0], "height": SIZES["desk"][1]})
        page.goto(address)
        page.wait_for_selector("#name-ask[open]")
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        page.wait_for_selector("#place:not(:empty)")
        if shots:
            photograph(page, shots, "label")
        count = answer_by_key(page, truth, store)
        if shots:
            page.goto(address.split("/?")[0] + "/dashboard")
            page.wait_for_selector("svg")
            photograph(page, shots, "dashboard")
        browser.close()
    return count


def answer_by_key(page: Any, truth: dict[int, str], store: Store) -> int:
    """Presses the keys of the right class until the page says that no images are left."""
    from playwright.sync_api import TimeoutError

    is_done = "document.querySelector('#done').hidden === false"
    count = 0
    for _ in range(100_000):
        page.wait_for_function(f"() => {is_done} || (document.querySelector('#image').naturalWidth && {PLACE})")
        if page.is_visible("#done"):
            if is_all_there(store):
                return count
            continue  # the server has more images that the page has not loaded yet
        place = page.inner_text("#place")
        name = truth[int(place.split()[1])]
        while True:  # the page accepts no answer before the image is shown
            press_class(page, name)
            try:
                page.wait_for_function(f"before => {is_done} || {PLACE} !== before", arg=place, timeout=500)
                count += 1
                break
            except TimeoutError:
                continue
    raise AssertionError("The page never ends.")


def press_class(page: Any, name: str) -> None:
    """Presses the key of a class or, if it has none for this image, searches for it by name."""
    keys = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#classes button:not([hidden])')].map("
        "b => [b.querySelector('span').textContent, b.querySelector('kbd')?.textContent]))"
    )
    if name in keys:
        page.keyboard.press(keys[name].lower())
        return
    page.keyboard.press("/")
    page.fill("#search", name)
    page.keyboard.press("Enter")


def label_over_http(workspace: Path, answers: dict[str, str], shots: Path | None = None, name: str = "ann") -> int:
    """Labels all waiting images with the requests of the page but without a browser; returns how many there were."""
    store = open_store(workspace)
    truth = {image: answers[path] for image, path in paths_of(store).items() if path in answers}
    numbers, count = {label: number for number, label in enumerate(store.classes())}, 0
    with serving(workspace) as address:
        site, token = re.fullmatch(r"(http://[^/]+)/\?token=(.+)", address).groups()  # pyright: ignore[reportOptionalMemberAccess]

        def post(what: str, **body: object) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            request = Request(f"{site}/api/{what}", json.dumps(body).encode(), headers)
            with urlopen(request, timeout=60) as reply:
                return json.load(reply)

        while tasks := post("next", who=name, count=20)["tasks"]:
            for task in tasks:
                image = task["image"]
                post(
                    "answer",
                    who=name,
                    image=image,
                    answer="class",
                    ticket=secrets.token_hex(8),
                    **{"class": numbers[truth[image]]},
                )
                count += 1
    return count


@contextmanager
def serving(workspace: Path) -> Iterator[str]:
    """Runs `rarefish label` and yields the address of the page."""
    command = [sys.executable, "-m", "rarefish", "label", str(workspace)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def is_all_there(store: Store, longest_s: float = 3) -> bool:
    """Returns whether all answers reach the disk soon; the page does not wait for that."""
    until = time.monotonic() + longest_s
    while progress(store).open and time.monotonic() < until:
        time.sleep(0.1)
    return not progress(store).open


def paths_of(store: Store) -> dict[int, str]:
    with store.reading() as connection:
        rows = connection.execute("SELECT id, path FROM image WHERE part = 'pool'").fetchall()
    return {image: os.fsdecode(path) for image, path in rows}


def photograph(page: Any, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(200)
            page.screenshot(path=str(folder / f"{name}_{scheme}_{size}.png"), full_page=name != "label")
    page.set_viewport_size({"width": SIZES["desk"][0], "height": SIZES["desk"][1]})
    page.emulate_media(color_scheme="light")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--name", default="ann")
    arguments = parser.parse_args()
    with arguments.answers.open(newline="") as file:
        answers = {row["path"]: row["label"] for row in csv.DictReader(file)}
    count = label_all(arguments.workspace, answers, arguments.shots, arguments.name)
    print(f"{count} images answered, one key each.")


if __name__ == "__main__":
    main()
