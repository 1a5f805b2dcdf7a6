"""The command `rarefish demo`; tests/report/test_demo.py runs it in full."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rarefish.cli import demo as module
from rarefish.cli.main import cli
from rarefish.errors import ArgumentError
from rarefish.report import demo


def test_it_runs_with_its_options_and_names_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_demo(output: Path, seeds: int, rounds: int, tell: demo.Tell) -> demo.Outcome:
        calls.append((output, seeds, rounds))
        tell("learning", 0, 30)
        return demo.Outcome(output / "report.html", "It works.")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    result = CliRunner().invoke(cli, ["demo", "--output", str(tmp_path / "out"), "--seeds", "2"])
    assert result.exit_code == 0, result.output
    assert calls == [(tmp_path / "out", 2, 5)] and "learning" in result.stderr
    assert f"It works.\nReport: {tmp_path / 'out' / 'report.html'}" in result.stdout


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    refused = CliRunner().invoke(cli, ["demo"])
    assert isinstance(refused.exception, ArgumentError) and "pip install 'rarefish[report]'" in str(refused.exception)
