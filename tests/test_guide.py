"""The guide, command by command as it stands, with a simulated annotator at the real page in a real Chromium."""

import shutil
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.browser
def test_three_rounds_raise_recall_on_the_rare_classes(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        pytest.skip("no Chromium to test pages with")
    from guide import follow

    found = follow(tmp_path)
    assert [made["labeled"] for made in found["rounds"]] == [40, 40, 40]
    assert found["progress"] | {"by_person": None} == {
        **{"asked": 120, "open": 0, "split": 0, "settled": 120},
        "by_person": None,
    }
    rare = [found["classes"].index(name) for name in ("five", "six", "seven", "eight", "nine")]
    first, *_, last = ([training["recall"][c] for c in rare] for training in found["trainings"])
    assert sum(last) / 5 > sum(first) / 5 + 0.1
    assert (tmp_path / "work" / "report" / "report.html").exists() and (tmp_path / "labels.json").exists()
