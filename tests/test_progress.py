"""Progress bars: seen by a person, silent elsewhere, and never in the way of the items."""

import io
import sys

import pytest

from rarefish.progress import track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize("shown", [True, False])
def test_items_pass_and_only_a_terminal_sees_a_bar(
    stream: type[io.StringIO], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stream()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    assert list(track([[1, 2], [3]], total=3, title="counting", step=len, shown=shown)) == [[1, 2], [3]]
    assert ("counting" in out.getvalue()) == (shown and stream is Terminal)
