"""Heads in a workspace: what they learn from, how they are scored, and that their model is one with the backbone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rarefish.errors import WorkspaceError
from rarefish.training.config import FINE_TUNING
from rarefish.training.linear_head import fit_linear_head
from rarefish.workspace.active_learning import choose_round, evaluate_model, train_head_model, train_model
from rarefish.workspace.answers import settled
from rarefish.workspace.embeddings import EmbeddedPart, embed_images, head_model
from rarefish.workspace.head_training import latest_head
from rarefish.workspace.model import latest_model
from rarefish.workspace.store import Store
from rarefish.workspace.summary import summarize
from rarefish.workspace.verification import verify
from tests.workspace.small_workspace import RUNNING, label_all, pretrained, small
from tests.workspaces import CLASSES, draw


def labeled(folder: Path, **settings: object) -> Store:
    store = pretrained(folder, **settings)
    choose_round(store, 9, allow_near_copies=True, running=RUNNING)
    label_all(store)
    return store


def train(store: Store) -> dict[str, Any]:
    head = head_model(store)
    assert head is not None
    return train_head_model(store, head, running=RUNNING)


def parts_of(store: Store) -> dict[str, EmbeddedPart]:
    head = head_model(store)
    assert head is not None
    return embed_images(store, head, RUNNING)


def expected_head(store: Store, with_trusted: bool):
    """The head of the same rows, put together in another way."""
    parts, labels = parts_of(store), settled(store)
    pool, trusted = parts["pool"], parts["validation"]
    rows = [(pool.embeddings.values[pool.ids.index(image)], labels[image]) for image in sorted(labels)]
    if with_trusted:
        rows += list(zip(trusted.embeddings.values, trusted.labels, strict=True))
    features, known = zip(*rows, strict=True)
    return fit_linear_head(torch.stack([torch.tensor(row) for row in features]), known, len(CLASSES))


def test_a_head_learns_from_labels_and_trusted_images_and_is_scored_out_of_fold(tmp_path: Path) -> None:
    store = labeled(tmp_path)
    done = train(store)
    how, expected = json.loads(done["how"]), expected_head(store, with_trusted=True)
    assert (how["trained"], how["scored"], how["trusted"], done["labels_spent"]) == ("head", "out of fold", 24, 9)
    trusted = torch.tensor(parts_of(store)["validation"].labels)
    right = expected.out_of_fold_probabilities[9:].argmax(dim=1) == trusted
    assert done["accuracy"] == pytest.approx(float(right.float().mean()))
    for number, value in enumerate(json.loads(done["recall"])):
        assert value == pytest.approx(float(right[trusted == number].float().mean()))
    assert json.loads(done["counts"]) == [8, 8, 8]
    head = head_model(store)
    assert head is not None
    linear = latest_head(store, head)
    assert linear is not None
    torch.testing.assert_close(linear.weight.detach(), expected.weight)
    assert evaluate_model(store, None, RUNNING).accuracy == pytest.approx(done["accuracy"])
    (summary,) = summarize(store)["trainings"]
    assert (summary["scored"], summary["trained"], summary["trusted"]) == ("out of fold", "head", 24)
    assert summarize(store)["is_trained"] and not verify(store)


def test_held_out_images_are_not_learned_from(tmp_path: Path) -> None:
    store = labeled(tmp_path, hold_out=True)
    done = train(store)
    how, expected = json.loads(done["how"]), expected_head(store, with_trusted=False)
    assert (how["scored"], how["trusted"]) == ("validation", 0)
    trusted = parts_of(store)["validation"]
    right = expected.probabilities(trusted.embeddings.values).argmax(dim=1) == torch.tensor(trusted.labels)
    assert done["accuracy"] == pytest.approx(float(right.float().mean()))
    assert evaluate_model(store, None, RUNNING).accuracy == pytest.approx(done["accuracy"])
    choose_round(store, 3, allow_near_copies=True, running=RUNNING)
    with store.reading() as connection:
        rows = connection.execute(
            "SELECT center_guess, class FROM pick JOIN image ON image.id = center WHERE round = 2"
        )
        assert all(guess != number for guess, number in rows), "the head fails on the images that it matched"


def test_the_weights_are_those_of_the_whole_model(tmp_path: Path) -> None:
    store = labeled(tmp_path)
    train(store)
    for kind, name in enumerate(CLASSES):
        for number in range(4):
            draw(tmp_path / "test" / name / f"{number}.png", kind, 900 + 10 * kind + number)
    found = evaluate_model(store, tmp_path / "test", RUNNING)
    model, wanted = latest_model(store)
    from rarefish.data.open_dataset import open_labeled
    from rarefish.training.evaluation import evaluate

    data = open_labeled(tmp_path / "test", wanted.size, wanted.mode, wanted.mean, wanted.std)
    whole = evaluate(model, data, 3)
    assert found.prediction.tolist() == whole.prediction.tolist() and found.accuracy > 0.5


def test_a_head_can_be_trained_before_the_first_label_unless_images_are_held_out(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    assert train(store)["labels_spent"] == 0
    store.set(hold_out=True)
    with pytest.raises(WorkspaceError, match="There are no labels to train on"):
        train(store)


def test_a_fine_tuned_network_has_no_head_of_its_own(tmp_path: Path) -> None:
    store = labeled(tmp_path)
    done = train_model(store, replace(FINE_TUNING, epochs=1), running=RUNNING)
    head = head_model(store)
    assert head is not None and latest_head(store, head) is None
    assert json.loads(done["how"])["scored"] == "validation"
    assert choose_round(store, 3, allow_near_copies=True, running=RUNNING) == 2
    assert head_model(small(tmp_path / "random")) is None


def test_labels_of_images_that_are_gone_still_count(tmp_path: Path) -> None:
    store = labeled(tmp_path)
    with store.reading() as connection:
        (path,) = connection.execute("SELECT path FROM pick JOIN image ON id = image LIMIT 1").fetchone()
    (tmp_path / "pool" / bytes(path).decode()).unlink()
    done = train(store)
    assert json.loads(done["how"])["left_out"] == [], "its embedding is still there"
