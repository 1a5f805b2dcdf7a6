"""What a workspace comes to."""

from pathlib import Path

import pytest

from rarefish.workspace.answers import answer, take
from rarefish.workspace.history import add_training
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
    assert found["rounds"] == [{"number": 1, "picks": 6, "labeled": 5, "bought": [3, 2, 0]}]
    assert [training["balanced"] for training in found["trainings"]] == pytest.approx([0.5, 0.65, 0.7, 0.75])
    assert found["progress"]["open"] == 1 and found["progress"]["settled"] == 5 and found["unlabeled"] == 6
    assert found["outlook"].startswith("The next 100 labels should add ")
