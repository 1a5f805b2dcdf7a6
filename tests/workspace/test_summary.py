"""What a workspace comes to."""

import json
from pathlib import Path

import pytest

from rarefish.workspace.answers import answer, take
from rarefish.workspace.round_history import add_training
from rarefish.workspace.summary import summarize
from tests.workspaces import make_workspace


def test_all_of_it(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=12, trusted=4, picks=6)
    empty = summarize(store)
    assert empty["trainings"] == [] and empty["outlook"] is None and empty["mix"]["pool"] is None
    for task in take(store, "ann", 5):
        answer(store, task.image, "ann", "class", task.rank % 2, f"t{task.rank}")
    for spent, recall in ((2, [0.9, 0.1, None]), (5, [0.9, 0.4, None]), (5, [0.9, 0.5, None]), (9, [0.9, 0.6, None])):
        add_training(store, labels_spent=spent, weights="w", how={}, accuracy=0.5, recall=recall, counts=[4, 4, 0])
    found = summarize(store)
    assert found["counts"] == [4, 4, 4] and found["mix"]["validation"] == pytest.approx([1 / 3] * 3)
    assert found["rounds"] == [{"number": 1, "picks": 6, "labeled": 5, "labels_per_class": [3, 2, 0]}]
    assert [training["balanced"] for training in found["trainings"]] == pytest.approx([0.5, 0.65, 0.7, 0.75])
    assert found["progress"]["open"] == 1 and found["progress"]["settled"] == 5 and found["unlabeled"] == 6
    assert found["outlook"].startswith("The next 100 labels should add ")


def test_the_mix_is_that_of_the_latest_selection_that_estimated_one(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=12, trusted=4, picks=2)
    for mix in ([0.9, 0.07, 0.03], [0.8, 0.15, 0.05], None):
        with store.writing() as connection:
            number = connection.execute("SELECT max(number) + 1 AS number FROM round").fetchone()["number"]
            how = json.dumps({"pool_mix": mix})
            connection.execute("INSERT INTO round (number, how, made_at) VALUES (?, ?, ?)", (number, how, "now"))
    mix = summarize(store)["mix"]
    assert mix["pool"] == [0.8, 0.15, 0.05] and mix["pool_low"] is mix["pool_high"] is None
    assert mix["validation"] == pytest.approx([1 / 3] * 3)


def test_the_mix_is_compared_with_the_validation_set_of_its_selection(tmp_path: Path) -> None:
    """The validation set has changed since; shares relative to the new one would be wrong."""
    store = make_workspace(tmp_path, pool=12, trusted=4, picks=2)
    interval = [[0.7, 0.1, 0.01], [0.9, 0.2, 0.1]]
    how = {"pool_mix": [0.8, 0.15, 0.05], "pool_mix_interval": interval, "validation_mix": [0.2, 0.5, 0.3]}
    with store.writing() as connection:
        connection.execute("UPDATE round SET how = ?", (json.dumps(how),))
    mix = summarize(store)["mix"]
    assert mix["validation"] == [0.2, 0.5, 0.3] and mix["pool"] == [0.8, 0.15, 0.05]
    assert [mix["pool_low"], mix["pool_high"]] == interval
