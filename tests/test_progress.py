"""Progress bars: seen by a person, silent elsewhere, and never in the way of the items."""

import io
import sys
import threading
import time

import pytest
import torch

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


def test_an_error_leaves_no_bar_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from rarefish import describe
    from tests.cases import Plain, images

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    before = threading.active_count()
    bad = images(6)
    bad[5] = torch.nan
    with pytest.raises(ArithmeticError) as caught:
        describe(Plain(), list(bad), layers=("conv1",), batch_size=2)
    deadline = time.monotonic() + 600
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert caught.value is not None and threading.active_count() == before
