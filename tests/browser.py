"""A real Chromium for pages: the system's, or the one Playwright keeps; a reason to skip where there is none.

It is started once per process; pages share a context, which costs less than one for each, but no cookies and storage.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

SYSTEM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
_running: list[Any] = []
"""Playwright, its browser and the context of all pages, if they were started."""


@contextmanager
def open_page(address: str) -> Iterator[tuple]:
    """(the page, every address it asked for, what its console complained of)."""
    browser, context = start_browser(), _running[2]
    tab = context.new_page()
    try:
        forget(tab, address)
        asked: list[str] = []
        complaints: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(address)
        yield tab, asked, complaints
    finally:
        for page in context.pages:
            page.close()
        for other in browser.contexts:
            if other is not context:
                other.close()


def forget(tab: Any, address: str) -> None:
    """What earlier pages left, some perhaps at the same port."""
    tab.context.clear_cookies()
    session, parts = tab.context.new_cdp_session(tab), urlsplit(address)
    session.send("Network.clearBrowserCache")
    if parts.netloc:
        session.send(
            "Storage.clearDataForOrigin", {"origin": f"{parts.scheme}://{parts.netloc}", "storageTypes": "all"}
        )
    session.detach()


def start_browser() -> Any:
    """The browser of this process, started if there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if _running and not _running[1].is_connected():
        stop_browser()
    if not _running:
        playwright = api.sync_playwright().start()
        own = next((path for name in SYSTEM if (path := shutil.which(name))), None)
        try:
            browser = playwright.chromium.launch(executable_path=own, args=FLAGS)
        except api.Error as error:
            playwright.stop()
            pytest.skip(f"no Chromium to test pages with: {str(error).splitlines()[0]}")
        _running[:] = playwright, browser, browser.new_context()
    return _running[1]


def stop_browser() -> None:
    """Ends it, for whatever needs a Playwright of its own in this process."""
    if _running:
        playwright, browser, _ = _running
        _running.clear()
        browser.close()
        playwright.stop()
