"""The command line: quick to start, one line for a mistake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rarefish.cli import main as cli
from tests import forked_processes


def test_starts_without_torch() -> None:
    """Importing torch takes seconds; `rarefish --help` must not."""
    code = "import sys, rarefish.cli.main; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_threads_do_not_spin() -> None:
    """On a busy machine, `next` takes five times the processor time if threads that wait use their cores."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    code = "from rarefish.cli import main; main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "layers", "lenet"],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "OMP_DISPLAY_ENV": "VERBOSE"},
    )
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


def test_whoever_wants_threads_to_spin_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setattr(cli, "cli", lambda: None)
    cli.main()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize("command", [[], ["demo"]])
def test_help_has_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(cli.cli, [*command, "--help"])
    assert result.exit_code == 0 and "Example:" in result.output and "rarefish demo" in result.output


@pytest.mark.parametrize("group", [[], ["studio"]])
def test_summaries_of_commands_are_shown_whole(group: list[str]) -> None:
    """Click cuts a first sentence that does not fit a terminal of 80 columns and ends it with dots."""
    result = CliRunner().invoke(cli.cli, [*group, "--help"], terminal_width=80)
    assert result.exit_code == 0 and "..." not in result.output.partition("Commands:")[2]


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
    done = forked_processes.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("rarefish: Not a directory")
