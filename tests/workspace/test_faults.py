"""I/O errors, a full disk, process death and power cuts at every write of a short session: no label is lost."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRELOAD = ROOT / "tests" / "workspace" / "faults.c"
MEMORY = Path("/dev/shm")
"""A folder without a disk, where there is one: it is the order of the calls that counts, not their effect on a disk."""
NEEDED = {"make": 100, "label": 100}
"""Calls that each part makes at least: fewer mean that they were not seen."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("the faults are injected by a C library that needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(PRELOAD), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.slow
@pytest.mark.parametrize("part", NEEDED)
def test_no_acknowledged_label_is_lost_or_doubled_by_a_fault_at_any_write(faults: Path, part: str) -> None:
    environment = os.environ | {"LD_PRELOAD": str(faults)}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        command = [sys.executable, "-m", "tests.workspace.fault_session", folder, part]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert len(found["calls"]) >= NEEDED[part] and set(found["calls"]) >= set("wstcu") and found["labels"] == 6
