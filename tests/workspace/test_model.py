"""The workspace's model: its initial weights, the weights of its last training run, and damaged files."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rarefish.errors import ModelError, WorkspaceError
from rarefish.training.config import FINE_TUNING
from rarefish.workspace.active_learning import choose_round, train_model
from rarefish.workspace.model import describe_layers, first_model, latest_model, save_weights
from rarefish.workspace.store import Store
from rarefish.workspace.trust import trust_model
from rarefish.workspace.verification import verify
from tests.workspace.small_workspace import RUNNING, label_all, small
from tests.workspaces import add_round, make_workspace


def test_the_weights_of_the_last_training_are_taken_up(tmp_path: Path) -> None:
    store = small(tmp_path)
    first = latest_model(store)[0].state_dict()
    add_round(store, 6)
    label_all(store)
    train_model(store, replace(FINE_TUNING, epochs=2), running=RUNNING)
    last, again = latest_model(store)[0].state_dict(), first_model(store)[0].state_dict()
    assert not torch.equal(first["fc2.weight"], last["fc2.weight"])
    assert torch.equal(first["fc2.weight"], again["fc2.weight"])


def test_rotation_pretraining_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small(tmp_path, start="rotation")
    first = first_model(store)[0].state_dict()
    assert len(list((store.folder / "models").glob("start-*.pt"))) == 1
    monkeypatch.setattr("rarefish.workspace.model.pretrain_rotation", lambda *_: pytest.fail("a second time"))
    assert torch.equal(first_model(store)[0].state_dict()["fc1.1.weight"], first["fc1.1.weight"])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A workspace with an initial model and a trained one."""
    store = small(tmp_path_factory.mktemp("trained"), start="rotation")
    add_round(store, 6)
    label_all(store)
    train_model(store, replace(FINE_TUNING, epochs=1), running=RUNNING)
    return store


@pytest.mark.parametrize(
    ("damage", "word"), [(cut, r"has [\d,]+ of [\d,]+ bytes"), (flip, "does not have the content that was written")]
)
def test_damaged_weights_are_found_and_not_used(trained: Store, damage: Callable[[Path], None], word: str) -> None:
    assert not verify(trained)
    paths = sorted((trained.folder / "models").iterdir())
    assert len(paths) == 2
    for path in paths:
        whole = path.read_bytes()
        damage(path)
        said = f"The weights models/{path.name} are damaged: the file {word}"
        with pytest.raises(WorkspaceError, match=said):
            latest_model(trained)
        assert len(verify(trained)) == 1 and re.search(said, verify(trained)[0])
        path.write_bytes(whole)
    assert not verify(trained) and latest_model(trained)


def test_a_checkpoint_of_another_network_is_named(tmp_path: Path) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(3, 3))
    save_weights(other, tmp_path / "other.pt")
    store = small(tmp_path, weights=str(tmp_path / "other.pt"))
    with pytest.raises(ModelError, match=r"other\.pt belongs to a different network"):
        choose_round(store, 2, running=RUNNING)


def test_a_function_of_ones_own_gives_the_same_weights_each_time(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef make(num_classes):\n"
        "    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),"
        " nn.Linear(6, num_classes))\n"
    )
    store = make_workspace(tmp_path, pool=3, trusted=1)
    store.set(model=f"{tmp_path / 'own.py'}:make", size=[24, 24])
    trust_model(store, f"{tmp_path / 'own.py'}:make")
    one, other = (first_model(store)[0].state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_layers_of_a_name_and_of_a_workspace(tmp_path: Path) -> None:
    found = describe_layers("lenet", None, 10, None)
    assert [row["name"] for row in found if row["is_chosen"]] == ["conv1", "conv2", "fc1"]
    assert next(row["channels"] for row in found if row["name"] == "fc1") == 50
    small(tmp_path)
    assert describe_layers(str(tmp_path / "work"), None, 10, None) == found
