"""The command `rarefish experiment`; tests/experiments/test_runner.py runs it in full."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rarefish.cli.main import cli
from rarefish.errors import ArgumentError
from tests import forked_processes

ROOT = Path(__file__).parents[2]
RECIPE = f"{ROOT / 'tests/experiments/small.py'}:small"


def test_mistakes_in_a_cell_reach_the_user_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from tests.experiments.small import small\nfrom dataclasses import replace\n"
        "from rarefish.experiments.settings import Experiment\n"
        "def bad() -> Experiment:\n    return replace(small(), imbalances=(2,))\n"
    )
    command = [
        sys.executable,
        "-m",
        "rarefish",
        "experiment",
        f"{tmp_path / 'bad.py'}:bad",
        "--output",
        str(tmp_path / "run"),
    ]
    done = forked_processes.run([*command, "--device", "cpu"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "rarefish: An imbalance of 2 needs" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("option", [("--together",), ("--device", "cuda:0")])
def test_a_number_of_processes_is_refused_where_it_is_not_used(option: tuple[str, ...], tmp_path: Path) -> None:
    refused = CliRunner().invoke(cli, ["experiment", RECIPE, "--output", str(tmp_path / "run"), "--jobs", "2", *option])
    assert isinstance(refused.exception, ArgumentError) and "Leave out --jobs." in str(refused.exception)
    assert not (tmp_path / "run").exists()
