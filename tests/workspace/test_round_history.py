"""Rounds and training runs recorded in a workspace."""

from dataclasses import replace
from pathlib import Path

import pytest

from rarefish.errors import WorkspaceError
from rarefish.training.config import FINE_TUNING
from rarefish.workspace.active_learning import choose_round, train_model
from rarefish.workspace.answers import answer, settled
from rarefish.workspace.round_history import Chosen, add_round, latest_training
from rarefish.workspace.summary import summarize
from tests.workspace.small_workspace import RUNNING, label_all, small
from tests.workspaces import make_workspace


def test_another_model_or_another_label_asks_for_a_training(tmp_path: Path) -> None:
    store = small(tmp_path)
    choose_round(store, 6, running=RUNNING)
    label_all(store)
    train_model(store, replace(FINE_TUNING, epochs=1), running=RUNNING)
    assert summarize(store)["is_trained"]
    store.set(model="resnet10", size=[32, 32], mode="RGB")
    assert not summarize(store)["is_trained"] and latest_training(store) is None
    choose_round(store, 3, labels="density", running=RUNNING)
    store.set(model="lenet", size=[28, 28], mode="L")
    assert summarize(store)["is_trained"]
    image, number = next(iter(settled(store).items()))
    answer(store, image, "ann", "class", (number + 1) % 3, "corrected")
    assert not summarize(store)["is_trained"]


def test_a_round_is_whole_and_no_image_is_asked_twice(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=1, picks=2)
    with store.reading() as connection:
        ids = [i for (i,) in connection.execute("SELECT id FROM image WHERE part = 'pool' ORDER BY id")]
    fresh = [Chosen(image, None, None, 1.0, 0, ((0, 0.9), (1, 0.1))) for image in ids[2:4]]
    assert add_round(store, fresh, {"pool_mix": [0.8, 0.1, 0.1]}) == 2
    with pytest.raises(WorkspaceError, match="Another process has recorded a round in the meantime"):
        add_round(store, [Chosen(ids[4], None, None, 1.0, 0, ()), fresh[0]], {})
    assert [(r["number"], r["picks"]) for r in summarize(store)["rounds"]] == [(1, 2), (2, 2)]
    assert summarize(store)["mix"]["pool"] == [0.8, 0.1, 0.1] and latest_training(store) is None
