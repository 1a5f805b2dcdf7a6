"""Decide which workspaces may run Python code as their model: those that the user created or allowed with `--trust`.

A workspace names its model by an address, and an address FILE.py:FUNCTION or module:function is code. Somebody who
opens another person's workspace has not chosen that code. Permissions are stored outside the workspace, in the user's
configuration.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from warnings import warn

from rarefish.data.hashing import digest_file
from rarefish.data.image_io import printable
from rarefish.errors import WorkspaceError
from rarefish.io import write_whole
from rarefish.models.loading import is_own_code
from rarefish.workspace.store import FILE, Store

_allowed: dict[Path, dict[str, Any]] = {}
"""Permissions given in this process; they apply even if the configuration cannot be written."""


def trust_model(store: Store, address: str, *, changes: bool = False) -> None:
    """Allows this workspace to run the code of this model from now on; built-in models need no permission.

    Args:
        store: The workspace at its current path. Copies elsewhere are not trusted.
        address: The model. If the settings later name another model, that model is not trusted.
        changes: Whether the code may change, as the user's own model does. If not, a changed file is not run.
    """
    if not is_own_code(address):
        return
    place = _place(store)
    entry = {**_identity(store, address), "changes": changes, "sha256": _hash(address)}
    _allowed[place] = entry
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(place, json.dumps(entry) + "\n")
    except OSError as error:
        warn(
            f"Cannot store the permission for {store.folder} in {place.parent}: {error.strerror}. Set XDG_CONFIG_HOME "
            "to a writable folder.",
            stacklevel=2,
        )


def check_trust(store: Store) -> None:
    """Raises WorkspaceError if the workspace's model is Python code that this user has not allowed for it."""
    address = store.settings().get("model")
    if not address or not is_own_code(address):
        return
    entry = _allowed.get(_place(store)) or _read(_place(store))
    place, _, function = printable(address).rpartition(":")
    code = f"the Python file {place}" if place.endswith(".py") else f"the Python module {place}"
    way_out = (
        "If you trust it, run the command with --trust, or call rarefish.workspace.trust.trust_model(store, address)."
    )
    if {name: entry.get(name) for name in IDENTITY} != _identity(store, address):
        raise WorkspaceError(
            f"The workspace {store.folder} would run {code} to build its model ({function}), which you have not "
            f"allowed. Read the code first. {way_out}"
        )
    if not entry.get("changes") and entry.get("sha256") != _hash(address):
        raise WorkspaceError(
            f"The workspace {store.folder} would run {code}, which has changed since you allowed it. {way_out}"
        )


IDENTITY = ("folder", "inode", "model")


def _identity(store: Store, address: str) -> dict[str, Any]:
    """Returns what identifies the workspace and its model; the inode reveals a workspace that replaced another."""
    return {"folder": str(store.folder.resolve()), "inode": (store.folder / FILE).stat().st_ino, "model": address}


def _place(store: Store) -> Path:
    """Returns the file for this workspace in the user's configuration; one file each avoids conflicts of processes."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    home = os.path.expanduser("~")
    config = Path(given) if os.path.isabs(given) else Path(home if os.path.isabs(home) else "/") / ".config"
    name = hashlib.sha256(os.fsencode(store.folder.resolve())).hexdigest()
    return config / "rarefish" / "trusted" / f"{name}.json"


def _read(place: Path) -> dict[str, Any]:
    try:
        entry = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _hash(address: str) -> str | None:
    """Returns the hash of a Python file, or None for a module, since locating it would import its parent packages."""
    file = Path(address.rpartition(":")[0])
    return digest_file(file) if file.suffix == ".py" and file.is_file() else None
