"""A private file that redirects a browser to a link with a token, because other users can see command lines."""

import html
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LASTS_S = 60.0
"""Seconds that a browser has to start and read the file."""


@contextmanager
def redirect_file(address: str, lasts_s: float = LASTS_S) -> Iterator[Path]:
    """Yields the path of a file that only this user can read; it is removed after a while or when the block ends."""
    with tempfile.TemporaryDirectory(prefix="rarefish-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "open-labeling.html"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><title>rarefish</title>'
                f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
            )
        timer = threading.Timer(lasts_s, path.unlink, kwargs={"missing_ok": True})
        timer.daemon = True
        timer.start()
        try:
            yield path
        finally:
            timer.cancel()
