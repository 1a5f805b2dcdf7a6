"""A folder of images that several tests read."""

from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("cat", "red"), ("dog", "blue")):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (10 + i, 8), colour).save(tmp_path / name / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path
