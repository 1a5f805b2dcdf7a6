"""The demo as a newcomer runs it, made short: one seed, two rounds."""

import subprocess
import sys
from pathlib import Path

import pytest

from rarefish.active_learning.records import read_records
from tests.browser import open_page


@pytest.mark.slow
@pytest.mark.browser
def test_fisher_finds_what_random_does_not(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rarefish",
        "demo",
        "--seeds",
        "1",
        "--rounds",
        "2",
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    assert "Rare-class recall after 80 labels:" in done.stdout and str(tmp_path / "out" / "report.html") in done.stdout
    records = read_records(tmp_path / "out" / "records.jsonl")
    last = {record.method: record.rare_recall for record in records if record.round == 2}
    assert last["fisher"] > last["random"] + 0.1
    with open_page((tmp_path / "out" / "report.html").as_uri()) as (tab, asked, complaints):
        assert tab.locator("figure").count() == 80 and complaints == []
        assert all(address.startswith(("file:", "data:")) for address in asked)
