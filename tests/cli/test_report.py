"""The command `rarefish report`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rarefish.cli.main import cli
from rarefish.errors import ArgumentError
from tests.report.made import make_run
from tests.workspaces import make_workspace


def test_on_the_command_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my run")
    result = CliRunner().invoke(cli, ["report", str(run), "--format", "csv"])
    assert result.exit_code == 0, result.output
    assert (
        "records.csv" in result.output
        and "fisher density L80 saves" in result.output
        and "too few seeds" in result.output
    )
    assert "fisher density L80 is 16.7 points ahead of varR K128, mean over rounds" in result.output


@pytest.mark.parametrize("option", [("--format", "png"), ("--ours", "fisher"), ("--paper", __file__)])
def test_a_workspace_refuses_the_options_of_runs(option: tuple[str, str], tmp_path: Path) -> None:
    folder = make_workspace(tmp_path, pool=2, trusted=1).folder
    refused = CliRunner().invoke(cli, ["report", str(folder), *option])
    assert isinstance(refused.exception, ArgumentError) and f"Leave out {option[0]}." in str(refused.exception)
