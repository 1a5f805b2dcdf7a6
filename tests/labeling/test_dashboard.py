"""The dashboard in a real Chromium: charts, their tables, and whatever is missing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rarefish.workspace.store import Store
from tests.browser import open_page
from tests.labeling.many import EVIL, make_many, make_summary
from tests.labeling.serving import running
from tests.workspaces import make_workspace

pytestmark = pytest.mark.browser


@contextmanager
def dashboard(store: Store, told: Path | None) -> Iterator[Any]:
    with running(store.folder, told=told) as server:
        url = server.url.replace("/?", "/dashboard?")
        with open_page(url) as (tab, asked, complaints):
            tab.wait_for_selector("#content[aria-busy=false]")
            yield tab
            assert all(address.startswith(server.site) for address in asked) and complaints == []


def test_all_parts(tmp_path: Path) -> None:
    store = make_many(tmp_path, count=1000, picks=2)
    told = tmp_path / "told.json"
    told.write_text(json.dumps(make_summary(store.classes())))
    with dashboard(store, told) as tab:
        assert tab.locator("svg.chart").count() == 3 and tab.locator("svg.chart title").count() >= 3
        assert tab.inner_text("#outlook").startswith("The next 100 labels")
        tiles = tab.inner_text("#tiles")
        assert "70 %" in tiles and "12,345" in tiles and "+30.0 points" in tiles
        assert tab.locator(".recall tbody tr").count() == 1000
        assert tab.locator("#curve tbody tr").count() == 3 and tab.locator("#round tbody tr").count() == 1000
        assert EVIL[0] in tab.inner_text("#people") and tab.locator("img[src=x]").count() == 0
        assert "differs most" in tab.inner_text("#mix-text")


def test_recall_is_sorted_and_filtered(tmp_path: Path) -> None:
    store = make_many(tmp_path, count=40, picks=2)
    told = tmp_path / "told.json"
    told.write_text(json.dumps(make_summary(store.classes())))
    with dashboard(store, told) as tab:

        def column(place: int) -> list[str]:
            return tab.locator(f".recall tbody tr > :nth-child({place})").all_inner_texts()

        numbers = [int(text.removesuffix(" %")) for text in column(4)[:-1]]
        assert numbers == sorted(numbers) and column(4)[-1] == "–", "the worst first, the unknown last"
        tab.get_by_role("button", name="Last").click()
        assert tab.locator("[aria-sort=descending]").inner_text() == "Last"
        assert [int(text.removesuffix(" %")) for text in column(4)[:-1]] == numbers[::-1] and column(4)[-1] == "–"
        tab.get_by_role("button", name="Class").click()
        assert column(1).index("cat") < column(1).index("dog") < column(1).index("owl")
        tab.fill("#filter", "<IMG")
        assert column(1) == [EVIL[0]]


@pytest.mark.parametrize(
    "summary",
    [
        None,
        {},
        {"classes": ["a", "b"], "trainings": [], "rounds": [], "mix": None, "outlook": None, "progress": None},
        {"classes": ["a", "b"], "trainings": [{"labels_spent": 0, "accuracy": None, "recall": None}]},
        {
            "classes": ["a", "b"],
            "trainings": [{"recall": [None, 0.5]}],
            "mix": {"validation": [0.5, 0.5], "pool": None},
        },
        {
            "classes": ["a", "b"],
            "rounds": [{"number": 1, "labels_per_class": [3]}],
            "mix": {"validation": [0, 1], "pool": [0, None]},
        },
    ],
)
def test_what_is_missing_leaves_the_rest(tmp_path: Path, summary: dict[str, Any] | None) -> None:
    store = make_workspace(tmp_path, pool=2)
    told = None
    if summary is not None:
        told = tmp_path / "told.json"
        told.write_text(json.dumps(summary))
    with dashboard(store, told) as tab:
        assert tab.locator("#tiles dt").count() == 5 and not tab.locator("#trouble").is_visible()
        assert tab.locator("#people").inner_text() == "Nobody has answered yet."
        for part in ("curve", "recall", "round", "mix"):
            assert tab.locator(f"#{part} > *").count() > 0
