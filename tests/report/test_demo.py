"""The demo as a newcomer runs it, made short: one seed, one round."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rarefish.active_learning.records import read_records
from rarefish.report.charts import draw_curves
from rarefish.report.demo import Thumbnail, demo_page, gain, to_data_address
from tests import forked_processes
from tests.active_learning.test_records import record
from tests.browser import open_page


@pytest.mark.slow
@pytest.mark.browser
def test_fisher_finds_what_random_does_not(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    command = [sys.executable, "-m", "rarefish", "demo", "--seeds", "1", "--rounds", "1", "--output", folder]
    done = forked_processes.run(command, capture_output=True, text=True, timeout=1800, check=True)
    assert "Rare-class recall after 40 labels:" in done.stdout and str(tmp_path / "out" / "report.html") in done.stdout
    records = read_records(tmp_path / "out" / "records.jsonl")
    last = {record.method: record.rare_recall for record in records if record.round == 1}
    assert last["fisher"] > last["random"] + 0.1
    assert [record.method for record in records if not record.round] == ["trusted images only", "posterior alone"]
    with open_page((tmp_path / "out" / "report.html").as_uri()) as (tab, asked, complaints):
        assert tab.locator("figure").count() == 40 and complaints == []
        assert all(address.startswith(("file:", "data:")) for address in asked)


BASELINES = [
    replace(record("trusted only", s, 1, 0.6 + 0.02 * s), round=0, labels_spent=0, rare_recall=0.3) for s in range(2)
]
DOT = to_data_address(torch.eye(3))
VALUES = {"fisher": (0.4, 0.8), "entropy": (0.2, 0.4), "random": (0.1, 0.2)}
RECORDS = [record(m, s, n, v + 0.02 * s) for m, row in VALUES.items() for s in range(2) for n, v in enumerate(row, 1)]


def page() -> str:
    thumbnails = [[Thumbnail(DOT, DOT, label, 1, is_rare=label == 1) for label in (0, 1, 1)]] * 2
    return demo_page(
        RECORDS,
        thumbnails,
        baselines=BASELINES,
        rare=(1,),
        class_names=["common", "rare <b>"],
        pool_size=1234,
        command="rarefish demo",
        version="0",
    )


def test_the_gain_in_one_sentence() -> None:
    assert gain(RECORDS).sentence == (
        "Rare-class recall after 80 labels: 81% with fisher, 41% with entropy and 21% with random. Mean over rounds: "
        "30.0 points ahead of entropy (too few seeds for an interval). At equal recall: fisher needs 40 labels "
        "to reach what entropy reaches with 80 (50% saved)."
    )


def test_five_seeds_have_an_interval() -> None:
    """Means over rounds of 0.6 and 0.3 ± 0.01; Student's t of five seeds is 2.776."""
    shifts = (-0.01, 0.01, -0.01, 0.01, 0.0)
    records = [
        record(m, s, n, v + (shift if m == "entropy" else 0))
        for m, row in VALUES.items()
        for s, shift in enumerate(shifts)
        for n, v in enumerate(row, 1)
    ]
    assert "30.0 points ahead of entropy (95 % interval +28.8 to +31.2)" in gain(records).sentence  # ± 2.776 · 1 / √5


def test_a_loss_is_called_a_loss() -> None:
    worse = [
        record(m, 0, n, v / (1 if m != "fisher" else 4)) for m, row in VALUES.items() for n, v in enumerate(row, 1)
    ]
    assert "entropy is better here; fisher does not reach its recall" in gain(worse).sentence


def test_models_without_pool_labels_are_on_the_page() -> None:
    text = page()
    assert "trusted only: recall on the rare classes 30%, accuracy 61%. " in " ".join(text.split())
    assert text.count(">trusted only</text>") == 1  # the legend
    left, right = draw_curves(RECORDS, BASELINES).axes
    for axes, height in ((left, 0.3), (right, 0.61)):
        (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert np.asarray(dashed.get_xydata()) == pytest.approx(np.array([[0, height], [80, height]]))


def test_nothing_is_fetched_from_anywhere() -> None:
    text = page()
    outside = re.findall(r"""(?:src|href|url\()\s*=?\s*["']?(?!data:|#)([a-z]+:[^"')]+)""", text)
    assert [address for address in outside if "w3.org" not in address] == []
    assert "rare &lt;b&gt;" in text or "rare <b>" not in text


@pytest.mark.browser
def test_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page())
    with open_page(path.as_uri()) as (tab, asked, complaints):
        assert tab.title().startswith("rarefish demo")
        assert tab.locator("svg").count() == 2 and tab.locator("figure.rare").count() == 4
        for image in tab.locator("img").all():
            assert image.evaluate("image => image.naturalWidth") > 0
            assert image.get_attribute("alt")
        for width in (360, 1200):
            tab.set_viewport_size({"width": width, "height": 800})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert all(address.startswith(("file:", "data:")) for address in asked) and complaints == []
