"""The browser is opened without the token in any command line."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from rarefish.labeling.redirect import redirect_file
from tests.browser import open_page
from tests.labeling.serving import running
from tests.workspaces import make_workspace

OPENER = """#!/bin/sh
path=$(printf '%s' "$1" | sed 's|^file://||')
{ printf '%s\\n' "$1"; stat -c %a "$path" "$(dirname "$path")"; cat "$path"; } > "$TOLD.part"
mv "$TOLD.part" "$TOLD"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the opener has another name elsewhere")
@pytest.mark.parametrize("signal", [SIGINT, SIGTERM, SIGHUP])
def test_the_token_is_in_no_command_line_and_the_file_is_private_and_removed(tmp_path: Path, signal: int) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    opener, told = tmp_path / "bin" / "xdg-open", tmp_path / "told"
    opener.parent.mkdir()
    opener.write_text(OPENER)
    opener.chmod(0o755)
    (tmp_path / "token").write_text("a-token-in-a-file\n")
    command = [sys.executable, "-m", "rarefish", "label", str(store.folder), "--open"]
    command += ["--token-file", str(tmp_path / "token")]
    given = {**os.environ, "PATH": f"{opener.parent}:{os.environ['PATH']}", "TOLD": str(told), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=given, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.endswith("/?token=a-token-in-a-file")
        end = time.monotonic() + 60
        while not told.exists():
            assert time.monotonic() < end, "the opener was not called"
            time.sleep(0.02)
        argument, mode, folder_mode, content = told.read_text().splitlines()
        assert "a-token" not in argument and (mode, folder_mode) == ("600", "700")
        assert f'content="0; url={address}"' in content
        assert b"a-token" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        path = Path(argument.removeprefix("file://"))
        assert path.exists()
    finally:
        process.send_signal(signal)
        process.communicate(timeout=60)
    assert not path.exists() and not path.parent.exists()


@pytest.mark.browser
def test_a_browser_gets_in_through_the_file(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=2, picks=2)
    with (
        running(store.folder) as server,
        redirect_file(server.url) as path,
        open_page(path.as_uri()) as (tab, _, _),
    ):
        tab.wait_for_selector("#name-ask[open]", timeout=60_000)
        assert tab.url == server.site + "/"


def test_the_file_is_removed_after_a_while() -> None:
    with redirect_file("http://127.0.0.1/?token=x&y", lasts_s=0.05) as path:
        end = time.monotonic() + 60
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        while path.exists():
            assert time.monotonic() < end, "the file is still there"
            time.sleep(0.01)
