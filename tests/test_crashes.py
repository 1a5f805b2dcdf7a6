"""A few real kills of real processes; `python -m tests.crashes --times 50` does many."""

from pathlib import Path

import pytest

from tests.crashes import crash


@pytest.mark.slow
def test_nothing_is_lost_when_commands_are_killed(tmp_path: Path) -> None:
    lines = crash(tmp_path, 6, seed=1, commands=("select", "label", "train"))
    assert len(lines) == 7 and "none lost, none double" in lines[-1]
