"""The git commit of the running code, which is saved with every record."""

import subprocess
from functools import cache
from pathlib import Path

import rarefish

PACKAGE = Path(rarefish.__file__).parent


@cache
def source_commit() -> str:
    """Returns the commit of the running code, or an empty text if it is unknown; determined once per process."""
    return commit_of(PACKAGE)


def commit_of(package: Path) -> str:
    """Returns the short commit of the checkout that tracks the package, with "+" if the package is modified there.

    The result is empty without git, outside a checkout, and for an installed copy, even if it is inside another
    checkout.
    """
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    commit = _git(package, "rev-parse", "--short", "HEAD")
    modified = _git(package, "status", "--porcelain", "--", ".")
    if not tracked or not commit or modified is None:
        return ""
    return commit + "+" * bool(modified)


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns the output of a git command, or None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
