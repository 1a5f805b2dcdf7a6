"""Images of a workspace as a dataset: read from files or held in memory."""

from pathlib import Path

import pytest
import torch

from rarefish.errors import DataError
from rarefish.models.preprocessing import Input
from rarefish.workspace.dataset import load_into_memory, open_images
from rarefish.workspace.model import first_model
from tests.workspace.small_workspace import RUNNING, small
from tests.workspaces import make_workspace, replace_unnoticed


def test_another_picture_of_the_same_size_and_time_is_not_learned_from(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=1)
    replace_unnoticed(tmp_path / "pool" / "image 00000.png")
    shelf = open_images(store, "pool", Input((8, 8)))
    assert len(shelf) == 3 and shelf[1][0].shape == (3, 8, 8)
    with pytest.raises(DataError, match="image 00000.png is not the file that was indexed"):
        shelf[0]


def test_few_images_are_held_in_memory_and_many_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small(tmp_path)
    shelf = open_images(store, "validation", first_model(store)[1])
    held, unreadable = load_into_memory(shelf, RUNNING.reader())
    assert held is not shelf and len(held) == len(shelf) == 24 and not unreadable
    for index in (0, 23):
        image, label = held[index]
        assert isinstance(image, torch.Tensor) and torch.equal(image, shelf[index][0])
        assert int(label) == shelf[index][1]
    monkeypatch.setattr("rarefish.workspace.dataset.MOST_BYTES_IN_MEMORY", 1000)
    assert load_into_memory(shelf, RUNNING.reader()) == (shelf, {})
