"""Both pages for everyone: axe-core finds no serious fault, in light and dark, wide and narrow."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rarefish.workspace.answers import answer
from tests.browser import open_page
from tests.labeling.many import make_many, make_summary
from tests.labeling.serving import running
from tests.labeling.test_page import name_oneself, shown, until

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's source, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not there to fetch axe-core with")
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "axe-core@4"],
        cwd=folder, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"axe-core cannot be fetched: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


def faults(tab: Any, axe: str, widths: tuple[int, ...] = (360, 1280)) -> list[str]:
    """What axe-core finds in light and dark, at each width."""
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(axe)
    return [
        f"{scheme}, {width}: {one['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for width in widths
        for scheme in ("light", "dark")
        for one in look(tab, width, scheme)
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def look(tab: Any, width: int, scheme: Any) -> list[dict[str, Any]]:
    tab.set_viewport_size({"width": width, "height": 800})
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    return tab.evaluate("() => axe.run({ resultTypes: ['violations'] }).then((result) => result.violations)")


def test_no_serious_fault(tmp_path: Path, axe: str) -> None:
    store = make_many(tmp_path, count=12)
    store.set(people_per_image=2)
    with store.reading() as connection:
        image = connection.execute("SELECT image FROM pick ORDER BY rank DESC").fetchone()["image"]
    for number, who in enumerate(("Bo", "Cy")):
        answer(store, image, who, "class", number, f"ticket-{who}")
    told = tmp_path / "told.json"
    told.write_text(json.dumps(make_summary(store.classes())))
    with running(store.folder, told=told) as server, open_page(server.url) as (tab, _, _):
        tab.wait_for_selector("#name-ask[open]")
        assert faults(tab, axe) == [], "the name"
        name_oneself(tab, "Ann")
        until(tab, lambda: shown(tab), "an image")
        assert faults(tab, axe) == [], "the image"
        tab.keyboard.press("/")
        tab.keyboard.type("k")
        tab.wait_for_selector("#found li")
        assert faults(tab, axe) == [], "the search"
        tab.keyboard.press("Escape")
        tab.keyboard.press("?")
        assert faults(tab, axe) == [], "the keys"
        tab.keyboard.press("Escape")
        tab.click("#to-disagreements")
        tab.wait_for_selector(".card")
        assert faults(tab, axe) == [], "the disagreements"
        for width in (360, 1280):
            tab.set_viewport_size({"width": width, "height": 800})
            tab.goto(server.site + "/dashboard")
            tab.wait_for_selector(".recall")
            for fold in tab.locator("summary").all():
                fold.click()
            assert faults(tab, axe, (width,)) == [], "the dashboard"
            assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_everything_is_reached_by_tab(tmp_path: Path) -> None:
    store = make_many(tmp_path, count=5)
    with running(store.folder) as server, open_page(server.url) as (tab, _, _):
        name_oneself(tab, "Ann")
        until(tab, lambda: shown(tab), "an image")
        wanted = {
            "search",
            "stage",
            "larger",
            "smaller",
            "who",
            "help-open",
            "to-disagreements",
            "none",
            "unsure",
            "skip",
            "undo",
        }
        seen, marked = set(), True
        for _ in range(40):
            tab.keyboard.press("Tab")
            at = "document.activeElement"
            seen.add(tab.evaluate(f"{at}.dataset.command || {at}.id"))
            marked &= tab.evaluate(f"{at} === document.body || getComputedStyle({at}).outlineStyle !== 'none'")
        assert wanted <= seen and marked, "each of them with a visible focus"
