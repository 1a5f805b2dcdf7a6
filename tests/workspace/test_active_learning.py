"""Turns of a workspace with a real small network: what is chosen, learned and judged, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rarefish import Selection, select
from rarefish.distributed.resume_folder import NAME
from rarefish.errors import ArgumentError, DataError, ModelError, WorkspaceError
from rarefish.selection import PoolMatcher
from rarefish.training.config import FINE_TUNING
from rarefish.workspace import active_learning as work
from rarefish.workspace.active_learning import choose_round, evaluate_model, top_classes, train_model, training_for
from rarefish.workspace.answers import settled
from rarefish.workspace.dataset import open_images
from rarefish.workspace.model import latest_model
from rarefish.workspace.summary import summarize
from rarefish.workspace.verification import verify
from tests.workspace.small_workspace import RUNNING, label_all, small
from tests.workspaces import CLASSES, add_round, draw, make_workspace


def test_two_rounds(tmp_path: Path) -> None:
    store = small(tmp_path)
    assert choose_round(store, 9, running=RUNNING) == 1
    with store.reading() as connection:
        picks = connection.execute(
            "SELECT pick.*, center.part AS part FROM pick JOIN image AS center ON center.id = pick.center ORDER BY rank"
        ).fetchall()
        how = json.loads(connection.execute("SELECT how FROM round").fetchone()["how"])
    assert len(picks) == 9 and {row["part"] for row in picks} == {"validation"} and len(how["pool_mix"]) == 3
    for row in picks:
        classes, values = zip(*json.loads(row["probabilities"]), strict=True)
        assert classes[0] == row["guess"] and sum(values) == pytest.approx(1, abs=1e-3)
    label_all(store)
    done = train_model(store, replace(FINE_TUNING, epochs=4, balanced=True), running=RUNNING)
    assert json.loads(done["counts"]) == [8, 8, 8]
    assert done["labels_spent"] == 9 and (store.folder / "models" / done["weights"]).exists()
    assert not (store.folder / "training.pt").exists() and not (store.folder / "shards").exists()
    assert not (store.folder / NAME).exists()
    assert evaluate_model(store, None, RUNNING).accuracy == pytest.approx(done["accuracy"])
    assert choose_round(store, 9, running=RUNNING) == 2
    with store.reading() as connection:
        assert connection.execute("SELECT count(DISTINCT image) FROM pick").fetchone()[0] == 18
    assert len(settled(store)) == 9 and not verify(store)


def test_a_folder_of_the_user_in_a_workspace_is_never_touched(tmp_path: Path) -> None:
    store = small(tmp_path)
    for name in ("shards", NAME):
        (store.folder / name).mkdir()
        (store.folder / name / "plan.pt").write_text("mine")
    with pytest.raises(ArgumentError, match="was not created by rarefish"):
        choose_round(store, 3, running=RUNNING)
    (store.folder / NAME / "plan.pt").rename(store.folder / "mine.pt")
    assert choose_round(store, 3, running=RUNNING) == 1
    assert (store.folder / "shards" / "plan.pt").read_text() == (store.folder / "mine.pt").read_text() == "mine"


def test_a_test_set_of_ones_own(tmp_path: Path) -> None:
    store = small(tmp_path)
    for kind, name in enumerate(CLASSES[1:], start=1):
        draw(tmp_path / "test" / name / "1.png", kind, 5)
    score = evaluate_model(store, tmp_path / "test", RUNNING)
    assert torch.isnan(score.recall[0]) and not torch.isnan(score.recall[1:]).any()
    draw(tmp_path / "test" / "yak" / "1.png", 1, 5)
    with pytest.raises(ArgumentError, match="classes that the workspace does not have: yak"):
        evaluate_model(store, tmp_path / "test", RUNNING)


def test_a_changed_file_is_left_out_of_a_selection(tmp_path: Path) -> None:
    store = small(tmp_path)
    changed = tmp_path / "pool" / "image 00003.png"
    draw(changed, 1, 12345)
    choose_round(store, 44, running=RUNNING)
    with store.reading() as connection:
        paths = {bytes(p) for (p,) in connection.execute("SELECT path FROM pick JOIN image ON id = image")}
        how = json.loads(connection.execute("SELECT how FROM round").fetchone()["how"])
    assert len(paths) == 44 and b"image 00003.png" not in paths
    assert any("is not the file that was indexed" in why for why in how["unreadable"].values())


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=6, trusted=2)
    with pytest.raises(WorkspaceError, match="has no model yet"):
        choose_round(store, 2, running=RUNNING)
    store.set(model="lenet", mode="L")
    with pytest.raises(WorkspaceError, match="There are no labels to train on"):
        train_model(store, replace(FINE_TUNING, epochs=1), running=RUNNING)
    with pytest.raises(ArgumentError, match="Cannot choose 7 images: the pool has 6 left"):
        choose_round(store, 7, running=RUNNING)
    store.set(size=[32, 32])
    with pytest.raises(ModelError, match="fails on images of 32×32"):
        choose_round(store, 2, running=RUNNING)
    with store.alone("selecting"), pytest.raises(WorkspaceError, match="Another process is selecting"):
        choose_round(store, 2, running=RUNNING)


def test_a_training_says_which_labels_it_could_not_learn_from(tmp_path: Path) -> None:
    store = small(tmp_path)
    add_round(store, 6)
    label_all(store)
    with store.reading() as connection:
        (path,) = connection.execute("SELECT path FROM pick JOIN image ON id = image LIMIT 1").fetchone()
    (tmp_path / "pool" / bytes(path).decode()).unlink()
    done = train_model(store, replace(FINE_TUNING, epochs=1), running=RUNNING)
    (lost,) = json.loads(done["how"])["left_out"]
    assert done["labels_spent"] == 6 and "cannot be read" in lost
    (tmp_path / "validation" / "cat" / "0.png").unlink()
    with pytest.raises(DataError, match="1 validation images cannot be read"):
        train_model(store, replace(FINE_TUNING, epochs=1), running=RUNNING)


def test_fewer_labels_get_more_epochs(tmp_path: Path) -> None:
    store = small(tmp_path)
    assert training_for(store, {}, RUNNING).epochs == work.MOST_EPOCHS
    assert training_for(store, {"epochs": 3, "balanced": False}, RUNNING) == replace(
        FINE_TUNING, epochs=3, patience=10, balanced=False, num_workers=0
    )


def test_a_chosen_image_that_is_gone_before_the_round_is_written_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small(tmp_path)
    model, wanted = latest_model(store)
    pool, trusted = open_images(store, "pool", wanted), open_images(store, "validation", wanted)
    classify = PoolMatcher.classify

    def lose_the_second(self: PoolMatcher, index: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        pool.files[index[1]].unlink()
        return classify(self, index)

    monkeypatch.setattr(PoolMatcher, "classify", lose_the_second)
    chosen = select(model, pool, trusted, budget=5, labels="density", progress=False)
    lost = chosen.rows()[1][0]
    assert work._record(store, chosen, pool, trusted) == 1
    with store.reading() as connection:
        picks = [image for (image,) in connection.execute("SELECT image FROM pick ORDER BY rank")]
        how = json.loads(connection.execute("SELECT how FROM round").fetchone()["how"])
    assert picks == [pool.ids[row] for row, *_ in chosen.rows() if row != lost]
    assert list(how["unreadable"]) == [str(pool.ids[lost])]
    gone = replace(chosen, class_probabilities=torch.full((5, 3), torch.nan))
    with pytest.raises(DataError, match="None of the 5 chosen images can be read anymore"):
        work._record(store, gone, pool, trusted)


@pytest.mark.parametrize("labels", ["posterior", "density"])
def test_a_round_says_what_its_selection_found(labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, selections = small(tmp_path), list[Selection]()

    def keep(*data: Any, **how: Any) -> Selection:
        selections.append(select(*data, **how))
        return selections[-1]

    monkeypatch.setattr(work, "select", keep)
    assert choose_round(store, 5, labels=labels, running=RUNNING) == 1
    (chosen,) = selections
    with store.reading() as connection:
        rows = connection.execute("SELECT guess, probabilities, center_guess FROM pick ORDER BY rank").fetchall()
        how = json.loads(connection.execute("SELECT how FROM round").fetchone()["how"])
    assert [row["center_guess"] for row in rows] == chosen.center_predictions.tolist()
    for row, probabilities in zip(rows, chosen.class_probabilities, strict=True):
        assert row["guess"] == int(probabilities.argmax())
        stored = dict(json.loads(row["probabilities"]))
        assert stored == pytest.approx(dict(enumerate(probabilities.tolist())), abs=1e-4)
    assert how["pool_mix"] == (None if chosen.pool_mix is None else chosen.pool_mix.tolist())
    interval = chosen.pool_mix_interval
    assert how["pool_mix_interval"] == (None if interval is None else interval.tolist())
    mix = summarize(store)["mix"]
    assert [mix["pool_low"], mix["pool_high"]] == (how["pool_mix_interval"] or [None, None])
    known = [label for _, label in open_images(store, "validation", latest_model(store)[1])]
    assert mix["validation"] == how["validation_mix"] == [known.count(c) / len(known) for c in range(3)]
    assert (how["pool_mix"] is None) == (summarize(store)["mix"]["pool"] is None) == (labels == "density")


def test_likeliest_classes() -> None:
    assert top_classes(torch.tensor([0.1, 0.65004, 0.25])) == ((1, 0.65), (2, 0.25), (0, 0.1))
    assert len(top_classes(torch.full((20,), 0.05))) == 5
