"""The demo as a newcomer runs it, made short: one seed, two rounds."""

import subprocess
import sys
from pathlib import Path

import pytest

from rarefish.active_learning.records import read_records
from rarefish.data.digits import load_digits
from tests.browser import open_page


def test_the_bundled_pool_is_biased_and_the_rest_is_not() -> None:
    splits = load_digits()
    counts = [part.tensors[1].bincount(minlength=10).tolist() for part in (splits.pool, splits.validation, splits.test)]
    assert counts == [[1200] * 5 + [12] * 5, [50] * 10, [200] * 10]
    images = splits.pool.tensors[0]
    assert images.shape[1:] == (1, 28, 28) and abs(float(images.mean())) < 0.1 and abs(float(images.std()) - 1) < 0.1
    pool, validation = (
        {bytes(image.numpy().tobytes()) for image in part.tensors[0]} for part in (splits.pool, splits.validation)
    )
    assert not pool & validation


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
