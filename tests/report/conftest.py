from pathlib import Path

import pytest

from tests.report.made import make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "my run")
