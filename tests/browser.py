"""A real Chromium for pages: the system's, or the one Playwright keeps; a reason to skip where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SYSTEM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@contextmanager
def open_page(address: str) -> Iterator[tuple]:
    """(the page, every address it asked for, what its console complained of)."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with api.sync_playwright() as playwright:
        own = next((path for name in SYSTEM if (path := shutil.which(name))), None)
        try:
            browser = playwright.chromium.launch(executable_path=own, args=FLAGS)
        except api.Error as error:
            pytest.skip(f"no Chromium to test pages with: {str(error).splitlines()[0]}")
        try:
            tab = browser.new_page()
            asked: list[str] = []
            complaints: list[str] = []
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("console", lambda message: complaints.append(message.text))
            tab.on("pageerror", lambda error: complaints.append(str(error)))
            tab.goto(address)
            yield tab, asked, complaints
        finally:
            browser.close()
