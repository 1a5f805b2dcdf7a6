"""The command `rarefish layers`."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from rarefish.cli.main import cli
from rarefish.errors import ArgumentError
from tests.workspaces import make_workspace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_layers() -> None:
    done = run("layers", "lenet")
    assert "* fc1" in done.output and "  conv1.0" in done.output
    assert {row["name"] for row in json.loads(run("layers", "lenet", "--json").output)["layers"]} >= {"conv1", "fc1"}


def test_options_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path, pool=2, trusted=1).folder
    for arguments, words in (
        ((folder, "--classes", 3, "--mode", "L"), "Leave out --classes, --mode"),
        (("lenet", "--trust"), "Leave out --trust"),
    ):
        refused = run("layers", *arguments)
        assert isinstance(refused.exception, ArgumentError) and words in str(refused.exception)
