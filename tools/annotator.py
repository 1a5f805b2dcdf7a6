"""A simulated annotator at the labeling page: real Chromium, keyboard only, answers from a CSV file (path, label).

    python tools/annotator.py WORKSPACE answers.csv [--shots FOLDER] [--name ann]

Starts `rarefish label` itself, reads which image the page shows, presses the key of its class, and ends when the page
says that nothing is left. With --shots, pictures of the pages are kept: light and dark, desk and phone width.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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
    server = subprocess.Popen(
        [sys.executable, "-m", "rarefish", "label", str(workspace)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    try:
        with sync_playwright() as playwright:
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
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    return count


def answer_by_key(page: Any, truth: dict[int, str], store: Store) -> int:
    """Presses the key of the right class until the page says that no images are left."""
    from playwright.sync_api import TimeoutError

    keys = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#classes button')].map("
        "b => [b.querySelector('span').textContent, b.querySelector('kbd')?.textContent]))"
    )
    is_done = "document.querySelector('#done').hidden === false"
    count = 0
    for _ in range(100_000):
        page.wait_for_function(f"() => {is_done} || (document.querySelector('#image').naturalWidth && {PLACE})")
        if page.is_visible("#done"):
            if is_all_there(store):
                return count
            continue  # the server has more images that the page has not loaded yet
        place = page.inner_text("#place")
        key = keys[truth[int(place.split()[1])]].lower()
        while True:  # the page accepts no answer before the image is shown
            page.keyboard.press(key)
            try:
                page.wait_for_function(f"before => {is_done} || {PLACE} !== before", arg=place, timeout=500)
                count += 1
                break
            except TimeoutError:
                continue
    raise AssertionError("The page never ends.")


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
