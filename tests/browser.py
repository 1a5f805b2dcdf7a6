"""A real Chromium for pages: the system's, or the one Playwright keeps; a reason to skip where there is none.

It is started once per process; every page gets a context of its own, with its own storage, cookies and connections.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SYSTEM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
_running: list[Any] = []
"""Playwright and its browser, if they were started."""


@contextmanager
def open_page(address: str) -> Iterator[tuple]:
    """(the page, every address it asked for, what its console complained of)."""
    browser = start_browser()
    tab = browser.new_page()
    try:
        asked: list[str] = []
        complaints: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(address)
        yield tab, asked, complaints
    finally:
        for context in browser.contexts:
            context.close()


def start_browser() -> Any:
    """The browser of this process, started if there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if _running and not _running[1].is_connected():
        stop_browser()
    if not _running:
        playwright = api.sync_playwright().start()
        own = next((path for name in SYSTEM if (path := shutil.which(name))), None)
        try:
            _running[:] = playwright, playwright.chromium.launch(executable_path=own, args=FLAGS)
        except api.Error as error:
            playwright.stop()
            pytest.skip(f"no Chromium to test pages with: {str(error).splitlines()[0]}")
    return _running[1]


def stop_browser() -> None:
    """Ends it, for whatever needs a Playwright of its own in this process."""
    if _running:
        playwright, browser = _running
        _running.clear()
        browser.close()
        playwright.stop()
