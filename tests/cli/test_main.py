"""The command line: quick to start, one line for a mistake."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rarefish.cli import main as cli


def test_starts_without_torch() -> None:
    """Importing torch takes seconds; `rarefish --help` must not."""
    code = "import sys, rarefish.cli.main; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("command", [[], ["demo"]])
def test_help_has_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(cli.cli, [*command, "--help"])
    assert result.exit_code == 0 and "Example:" in result.output and "rarefish demo" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["demo", "--seeds", "0"], "0 is not in the range"), (["demmo"], "No such command 'demmo'")],
)
def test_wrong_words_are_a_usage_error(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.cli, arguments)
    assert result.exit_code == 2 and message in result.output


def test_what_the_user_can_mend_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "rarefish", "demo", "--output", str(tmp_path / "file" / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("rarefish: Not a directory")
