"""The Python code that a workspace names runs only where this user chose or allowed it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rarefish.cli.main import cli
from rarefish.errors import WorkspaceError
from rarefish.workspace.model import first_model
from rarefish.workspace.store import Store, open_store
from rarefish.workspace.trust import check_trust, trust_model
from tests import forked_processes
from tests.workspaces import make_workspace

COMMANDS = (("select", "--budget", "2"), ("train",), ("evaluate",), ("next",), ("layers",))
NET = """
import pathlib
from torch import nn
pathlib.Path({marker!r}).touch()

def make(num_classes):
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, num_classes)]
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), *head)
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "the code ran"


@pytest.fixture
def strange(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A workspace as somebody else made it, with code of theirs inside."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    store = make_workspace(tmp_path, pool=4, trusted=2, picks=2)
    net = store.folder / "net.py"
    net.write_text(NET.format(marker=str(marker)))
    store.set(model=f"{net}:make", size=[24, 24])
    with store.writing() as connection:
        connection.execute(
            "INSERT INTO label (image, who, answer, class, made_at, ticket) "
            "SELECT image, 'ann', 'class', 0, '2026-01-01', image FROM pick"
        )
        connection.execute("UPDATE pick SET is_open = 0")
    return store


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refusal(done: Result) -> str:
    assert isinstance(done.exception, WorkspaceError), done.output
    return str(done.exception)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_no_command_runs_the_code_of_a_strange_workspace(
    strange: Store, marker: Path, command: tuple[str, ...]
) -> None:
    said = refusal(run(command[0], strange.folder, *command[1:]))
    assert f"would run the Python file {strange.folder / 'net.py'}" in said and "--trust" in said
    assert not marker.exists()


def test_a_shell_gets_one_sentence_and_can_allow_it(strange: Store, marker: Path, tmp_path: Path) -> None:
    def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rarefish", "layers", str(strange.folder), *arguments]
        return forked_processes.run(command, capture_output=True, text=True, check=False)

    refused = shell()
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "--trust" in refused.stderr
    assert not marker.exists()
    assert shell("--trust").returncode == 0 and marker.exists()
    assert shell().returncode == 0
    (kept,) = (tmp_path / "configuration" / "rarefish" / "trusted").iterdir()
    assert kept.stat().st_mode & 0o077 == 0o044 or kept.stat().st_mode & 0o077 == 0


def test_a_library_call_is_refused_as_well(strange: Store, marker: Path) -> None:
    with pytest.raises(WorkspaceError, match="which you have not allowed"):
        first_model(strange)
    assert not marker.exists()


def test_a_module_needs_trust_too(strange: Store, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(strange.folder))
    strange.set(model="net:make")
    assert "would run the Python module net " in refusal(run("layers", strange.folder))
    assert not marker.exists() and "net" not in sys.modules


@pytest.mark.parametrize("address", ["lenet", "timm:resnet18", "torchvision:resnet18", "transformers:vit"])
def test_models_of_packages_need_no_trust(strange: Store, address: str) -> None:
    strange.set(model=address)
    check_trust(strange)


def test_allowed_code_that_changes_is_refused(strange: Store) -> None:
    assert run("layers", strange.folder, "--trust").exit_code == 0
    file = strange.folder / "net.py"
    file.write_text(file.read_text() + "\n# another version\n")
    assert "which has changed since you allowed it" in refusal(run("layers", strange.folder))
    assert run("layers", strange.folder, "--trust").exit_code == 0
    assert run("layers", strange.folder).exit_code == 0


def test_another_address_in_the_settings_is_refused(strange: Store) -> None:
    trust_model(strange, strange.settings()["model"])
    check_trust(strange)
    strange.set(model=f"{strange.folder / 'other.py'}:make")
    with pytest.raises(WorkspaceError, match="have not allowed"):
        check_trust(strange)


@pytest.fixture
def own(strange: Store, tmp_path: Path) -> Store:
    """A workspace that this user made, with a model of hers."""
    parts = ("--pool", tmp_path / "pool", "--validation", tmp_path / "validation")
    done = run("init", tmp_path / "own", *parts, "--model", f"{strange.folder / 'net.py'}:make", "--size", "24x24")
    assert done.exit_code == 0, done.output
    return open_store(tmp_path / "own")


def test_whoever_names_a_model_trusts_it_in_every_version(own: Store, strange: Store) -> None:
    assert run("layers", own.folder).exit_code == 0
    net = strange.folder / "net.py"
    net.write_text(net.read_text() + "\n# better\n")
    assert run("layers", own.folder).exit_code == 0


def test_a_copy_or_another_workspace_in_its_place_is_strange_again(own: Store, tmp_path: Path) -> None:
    shutil.copytree(own.folder, tmp_path / "copy")
    assert "have not allowed" in refusal(run("layers", tmp_path / "copy"))
    own.folder.rename(tmp_path / "before")
    (tmp_path / "copy").rename(own.folder)
    assert "have not allowed" in refusal(run("layers", own.folder))


def test_init_on_a_strange_workspace_does_not_run_its_code(strange: Store, marker: Path, tmp_path: Path) -> None:
    parts = ("--pool", tmp_path / "pool", "--validation", tmp_path / "validation")
    assert "have not allowed" in refusal(run("init", strange.folder, *parts))
    assert not marker.exists()
    assert run("init", strange.folder, *parts, "--model", "lenet").exit_code == 0


@pytest.mark.skipif(os.getuid() == 0 and not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_trust_that_cannot_be_remembered_counts_for_this_process(
    strange: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/self")
    with pytest.warns(UserWarning, match="Cannot store the permission"):
        trust_model(strange, strange.settings()["model"])
    check_trust(strange)
