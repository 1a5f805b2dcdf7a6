"""The page as a browser sees it: whole, readable, and without any network."""

import re
from pathlib import Path

import pytest
import torch

from rarefish.report.demo import to_data_address
from rarefish.report.demo_page import Thumbnail, demo_page, gain
from tests.active_learning.test_records import record
from tests.browser import open_page

DOT = to_data_address(torch.eye(3))
VALUES = {"fisher": (0.4, 0.8), "entropy": (0.2, 0.4), "random": (0.1, 0.2)}
RECORDS = [record(m, s, n, v + 0.02 * s) for m, row in VALUES.items() for s in range(2) for n, v in enumerate(row, 1)]


def page() -> str:
    thumbnails = [[Thumbnail(DOT, DOT, label, 1, 1, is_rare=label == 1) for label in (0, 1, 1)]] * 2
    return demo_page(
        RECORDS,
        thumbnails,
        rare=(1,),
        class_names=["common", "rare <b>"],
        pool_size=1234,
        command="rarefish demo",
        version="0",
    )


def test_the_gain_in_one_sentence() -> None:
    assert gain(RECORDS).sentence == (
        "Rare-class recall after 80 labels: 81% with fisher, 41% with entropy and 21% with random; it takes 40 labels "
        "to get where entropy gets with 80: 50% saved."
    )


def test_a_loss_is_called_a_loss() -> None:
    worse = [
        record(m, 0, n, v / (1 if m != "fisher" else 4)) for m, row in VALUES.items() for n, v in enumerate(row, 1)
    ]
    assert "entropy does better here: fisher does not reach its recall" in gain(worse).sentence


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
