"""Turns of a workspace with a real small network: what is chosen, learned and judged, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rarefish import select
from rarefish.distributed.resume_folder import NAME
from rarefish.errors import ArgumentError, DataError, ModelError, WorkspaceError
from rarefish.models.preprocessing import Input
from rarefish.training.config import Course
from rarefish.workspace import actions as work
from rarefish.workspace.actions import Running, choose_round, course_for, judge, learn
from rarefish.workspace.answers import answer, settled, take
from rarefish.workspace.history import latest_training
from rarefish.workspace.images import hold, shelve
from rarefish.workspace.model import describe_layers, first_model, latest_model, save_weights
from rarefish.workspace.store import Store
from rarefish.workspace.summary import summarize
from rarefish.workspace.trust import trust_model
from rarefish.workspace.verification import verify
from tests.workspaces import CLASSES, draw, make_workspace, replace_unnoticed

RUNNING = Running(device="cpu", batch_size=32, workers=0, progress=False)


def small(folder: Path, **settings: object) -> Store:
    store = make_workspace(folder, pool=45, trusted=8)
    store.set(model="lenet", mode="L", size=[28, 28], **settings)
    return store


def label_all(store: Store, who: str = "ann") -> None:
    """The truth: image n of the pool is of class n % 3."""
    with store.reading() as connection:
        rows = connection.execute("SELECT id, path FROM image WHERE part = 'pool'").fetchall()
    names = {image: bytes(path) for image, path in rows}
    for task in take(store, who, 100):
        number = int(names[task.image].split()[1][:5]) % len(CLASSES)
        answer(store, task.image, who, "class", number, f"{who}-{task.image}")


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
        chances = json.loads(row["chances"])
        assert chances[0][0] == row["guess"] and sum(chance for _, chance in chances) == pytest.approx(1, abs=1e-3)
    label_all(store)
    done = learn(store, Course(epochs=4, balanced=True), running=RUNNING)
    assert done["labels_spent"] == 9 and (store.folder / "models" / done["weights"]).exists()
    assert not (store.folder / "training.pt").exists() and not (store.folder / "shards").exists()
    assert not (store.folder / NAME).exists()
    assert judge(store, None, RUNNING).accuracy == pytest.approx(done["accuracy"])
    assert choose_round(store, 9, running=RUNNING) == 2
    with store.reading() as connection:
        assert connection.execute("SELECT count(DISTINCT image) FROM pick").fetchone()[0] == 18
    assert len(settled(store)) == 9 and not verify(store)


def test_a_folder_of_the_user_in_a_workspace_is_never_touched(tmp_path: Path) -> None:
    store = small(tmp_path)
    for name in ("shards", NAME):
        (store.folder / name).mkdir()
        (store.folder / name / "plan.pt").write_text("mine")
    with pytest.raises(ArgumentError, match="was not made by rarefish"):
        choose_round(store, 3, running=RUNNING)
    (store.folder / NAME / "plan.pt").rename(store.folder / "mine.pt")
    assert choose_round(store, 3, running=RUNNING) == 1
    assert (store.folder / "shards" / "plan.pt").read_text() == (store.folder / "mine.pt").read_text() == "mine"


def test_the_weights_of_the_last_training_are_taken_up(tmp_path: Path) -> None:
    store = small(tmp_path)
    first = latest_model(store)[0].state_dict()
    choose_round(store, 6, running=RUNNING)
    label_all(store)
    learn(store, Course(epochs=2), running=RUNNING)
    last, again = latest_model(store)[0].state_dict(), first_model(store)[0].state_dict()
    assert not torch.equal(first["fc2.weight"], last["fc2.weight"])
    assert torch.equal(first["fc2.weight"], again["fc2.weight"])


def test_a_test_set_of_ones_own(tmp_path: Path) -> None:
    store = small(tmp_path)
    for kind, name in enumerate(CLASSES[1:], start=1):
        draw(tmp_path / "test" / name / "1.png", kind, 5)
    score = judge(store, tmp_path / "test", RUNNING)
    assert torch.isnan(score.recall[0]) and not torch.isnan(score.recall[1:]).any()
    draw(tmp_path / "test" / "yak" / "1.png", 1, 5)
    with pytest.raises(ArgumentError, match="classes that the workspace has not: yak"):
        judge(store, tmp_path / "test", RUNNING)


def test_another_picture_of_the_same_size_and_time_is_not_learned_from(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=1, picks=1)
    replace_unnoticed(tmp_path / "pool" / "image 00000.png")
    shelf = shelve(store, "pool", Input((8, 8)))
    assert len(shelf) == 3 and shelf[1][0].shape == (3, 8, 8)
    with pytest.raises(DataError, match="image 00000.png is not the file that was indexed"):
        shelf[0]


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
    with pytest.raises(WorkspaceError, match="There are no labels to learn from"):
        learn(store, Course(epochs=1), running=RUNNING)
    with pytest.raises(ArgumentError, match="Cannot choose 7 images: the pool has 6 left"):
        choose_round(store, 7, running=RUNNING)
    store.set(size=[32, 32])
    with pytest.raises(ModelError, match="cannot look at images of 32×32"):
        choose_round(store, 2, running=RUNNING)
    with store.alone("selecting"), pytest.raises(WorkspaceError, match="Another process is selecting"):
        choose_round(store, 2, running=RUNNING)


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


@pytest.mark.parametrize(("damage", "word"), [(cut, r"has [\d,]+ of [\d,]+ bytes"), (flip, "has another content")])
def test_damaged_weights_are_found_and_not_used(tmp_path: Path, damage: Callable[[Path], None], word: str) -> None:
    store = small(tmp_path, start="rotation")
    choose_round(store, 6, running=RUNNING)
    label_all(store)
    learn(store, Course(epochs=1), running=RUNNING)
    assert not verify(store)
    for path in sorted((store.folder / "models").iterdir()):
        whole = path.read_bytes()
        damage(path)
        said = f"The weights models/{path.name} are damaged: the file {word}"
        with pytest.raises(WorkspaceError, match=said):
            latest_model(store)
        assert len(verify(store)) == 1 and re.search(said, verify(store)[0])
        path.write_bytes(whole)
    assert not verify(store) and latest_model(store)


def test_a_checkpoint_of_another_network_is_named(tmp_path: Path) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(3, 3))
    save_weights(other, tmp_path / "other.pt")
    store = small(tmp_path, weights=str(tmp_path / "other.pt"))
    with pytest.raises(ModelError, match=r"other\.pt is of another network"):
        choose_round(store, 2, running=RUNNING)


def test_a_training_says_which_labels_it_could_not_learn_from(tmp_path: Path) -> None:
    store = small(tmp_path)
    choose_round(store, 6, running=RUNNING)
    label_all(store)
    with store.reading() as connection:
        (path,) = connection.execute("SELECT path FROM pick JOIN image ON id = image LIMIT 1").fetchone()
    (tmp_path / "pool" / bytes(path).decode()).unlink()
    done = learn(store, Course(epochs=1), running=RUNNING)
    (lost,) = json.loads(done["how"])["left_out"]
    assert done["labels_spent"] == 6 and "cannot be read" in lost
    (tmp_path / "validation" / "cat" / "0.png").unlink()
    with pytest.raises(DataError, match="1 validation images cannot be read"):
        learn(store, Course(epochs=1), running=RUNNING)


def test_another_model_or_another_label_asks_for_a_training(tmp_path: Path) -> None:
    store = small(tmp_path)
    choose_round(store, 6, running=RUNNING)
    label_all(store)
    learn(store, Course(epochs=1), running=RUNNING)
    assert summarize(store)["is_trained"]
    store.set(model="resnet10", size=[32, 32], mode="RGB")
    assert not summarize(store)["is_trained"] and latest_training(store) is None
    choose_round(store, 3, running=RUNNING)
    store.set(model="lenet", size=[28, 28], mode="L")
    assert summarize(store)["is_trained"]
    image, number = next(iter(settled(store).items()))
    answer(store, image, "ann", "class", (number + 1) % 3, "corrected")
    assert not summarize(store)["is_trained"]


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


def test_few_images_are_held_in_memory_and_many_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small(tmp_path)
    shelf = shelve(store, "validation", first_model(store)[1])
    held, unreadable = hold(shelf, RUNNING.reader())
    assert held is not shelf and len(held) == len(shelf) == 24 and not unreadable
    for index in (0, 23):
        image, label = held[index]
        assert isinstance(image, torch.Tensor) and torch.equal(image, shelf[index][0])
        assert int(label) == shelf[index][1]
    monkeypatch.setattr("rarefish.workspace.images.MOST_HELD", 1000)
    assert hold(shelf, RUNNING.reader()) == (shelf, {})


def test_fewer_labels_get_more_epochs(tmp_path: Path) -> None:
    store = small(tmp_path)
    assert course_for(store, {}, RUNNING).epochs == work.MOST_EPOCHS
    assert course_for(store, {"epochs": 3, "balanced": False}, RUNNING) == Course(
        epochs=3, patience=10, balanced=False, workers=0
    )


def test_layers_of_a_name_and_of_a_workspace(tmp_path: Path) -> None:
    found = describe_layers("lenet", None, 10, None)
    assert [row["name"] for row in found if row["is_chosen"]] == ["conv1", "conv2", "fc1"]
    assert next(row["channels"] for row in found if row["name"] == "fc1") == 50
    small(tmp_path)
    assert describe_layers(str(tmp_path / "work"), None, 10, None) == found


def test_a_chosen_image_that_is_gone_before_the_round_is_written_is_left_out(tmp_path: Path) -> None:
    store = small(tmp_path)
    model, wanted = latest_model(store)
    pool, trusted = shelve(store, "pool", wanted), shelve(store, "validation", wanted)
    chosen = select(model, pool, trusted, budget=5, labels="density", progress=False)
    lost = chosen.rows()[1][0]
    pool.files[lost].unlink()
    assert work._record(store, chosen, model, pool, trusted, "density", RUNNING) == 1
    with store.reading() as connection:
        picks = [image for (image,) in connection.execute("SELECT image FROM pick ORDER BY rank")]
        how = json.loads(connection.execute("SELECT how FROM round").fetchone()["how"])
    assert picks == [pool.ids[row] for row, *_ in chosen.rows() if row != lost]
    assert list(how["unreadable"]) == [str(pool.ids[lost])]
