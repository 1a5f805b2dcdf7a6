"""What a workspace comes to."""

from pathlib import Path

import pytest

from rarefish.errors import WorkspaceError
from rarefish.workspace.answers import answer, take
from rarefish.workspace.history import Chosen, add_round, add_training, latest_training
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


def test_a_round_is_whole_and_no_image_is_asked_twice(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=1, picks=2)
    with store.reading() as connection:
        ids = [i for (i,) in connection.execute("SELECT id FROM image WHERE part = 'pool' ORDER BY id")]
    fresh = [Chosen(image, None, None, 1.0, 0, ((0, 0.9), (1, 0.1))) for image in ids[2:4]]
    assert add_round(store, fresh, {"pool_mix": [0.8, 0.1, 0.1]}) == 2
    with pytest.raises(WorkspaceError, match="Another process has made a round meanwhile"):
        add_round(store, [Chosen(ids[4], None, None, 1.0, 0, ()), fresh[0]], {})
    assert [(r["number"], r["picks"]) for r in summarize(store)["rounds"]] == [(1, 2), (2, 2)]
    assert summarize(store)["mix"]["pool"] == [0.8, 0.1, 0.1] and latest_training(store) is None
