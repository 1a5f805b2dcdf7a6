"""The command `rarefish embed`: what it prints, when it is refused, and the commands that follow it."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from rarefish.cli.main import cli
from rarefish.errors import ArgumentError, WorkspaceError
from rarefish.models.loading import load_model
from rarefish.workspace.answers import answer, take
from rarefish.workspace.store import open_store
from tests.workspaces import draw, make_images

QUICK = ("--workers", "0", "--device", "cpu")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def init(folder: Path, *more: object) -> Result:
    parts = ("--pool", folder / "pool", "--validation", folder / "validation", "--jobs", 1)
    return run("init", folder / "work", *parts, *more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_images(tmp_path, pool=30, trusted=6)
    torch.save(load_model("lenet", 3, 1).state_dict(), tmp_path / "weights.pt")
    done = init(tmp_path, "--model", "lenet", "--size", "28x28", "--weights", tmp_path / "weights.pt")
    assert done.exit_code == 0 and f"Next: rarefish embed {tmp_path / 'work'}" in done.output, done.output
    return tmp_path


def test_embed_select_label_and_train(folder: Path) -> None:
    work = folder / "work"
    (folder / "pool" / "image 00004.png").write_bytes(b"no image")
    first = run("embed", work, *QUICK)
    assert "29 pool images and 18 validation images have embeddings; 47 were computed now in" in first.output
    assert "images/s" in first.output and "1 images of the pool cannot be read, such as" in first.output
    assert "pool images are near-copies of validation images" in first.output, first.output
    again = json.loads(run("embed", work, *QUICK, "--json").output)
    assert again["pool"] == {"embedded": 29, "new": 0, "unreadable": 1} and again["near_copies"]
    done = run("next", work, "--budget", 9, "--allow-near-copies", *QUICK)
    assert done.exit_code == 0 and "Round 1: 9 images to label" in done.output, done.output
    store = open_store(work)
    for task in take(store, "ann", 9):
        assert 0 < task.similarity <= 1
        answer(store, task.image, "ann", "class", task.rank % 3, f"t{task.rank}")
    store.close()
    done = run("train", work, *QUICK)
    said = "Trained a head on frozen features on 9 labels and 18 validation images, because the model is pretrained. On"
    assert said in done.output and "validation set, out of fold: accuracy" in done.output, done.output
    assert "on 9 labels and 18 validation images: accuracy" in run("status", work).output
    assert "out of fold\n" in run("status", work).output
    assert ", out of fold" in run("evaluate", work, *QUICK).output
    own = run("evaluate", work, "--data", folder / "validation", *QUICK).output
    assert own.startswith("accuracy") and "out of fold" not in own
    assert "out of fold" in run("report", work).output
    assert "near-copies" in run("check", work).output
    assert run("backup", work, folder / "copy").exit_code == 0
    assert run("evaluate", folder / "copy", "--data", folder / "validation", *QUICK).output == own


def test_the_whole_network_on_request(folder: Path) -> None:
    work = folder / "work"
    run("next", work, "--budget", 4, "--allow-near-copies", *QUICK)
    store = open_store(work)
    for task in take(store, "ann", 9):
        answer(store, task.image, "ann", "class", task.rank % 3, f"t{task.rank}")
    store.close()
    refused = run("train", work, "--epochs", 1, *QUICK).exception
    assert isinstance(refused, ArgumentError) and "need --finetune. Leave out --epochs" in str(refused)
    done = run("train", work, "--finetune", "--epochs", 1, *QUICK)
    assert "Trained the whole network on 4 labels, as you asked. On the validation set: accuracy" in done.output
    assert init(folder, "--finetune").exit_code == 0
    done = run("train", work, "--epochs", 1, *QUICK)
    assert "whole network on 4 labels, because the workspace was created with --finetune" in done.output
    refused = run("embed", work).exception
    assert "trains the whole network, because the workspace was created with --finetune" in str(refused)


def test_settings_are_kept_until_they_are_changed(folder: Path) -> None:
    assert init(folder, "--hold-out").exit_code == 0 and init(folder, "--people", 2).exit_code == 0
    store = open_store(folder / "work")
    assert store.settings()["hold_out"] is True and store.settings()["finetune"] is None
    assert init(folder, "--no-hold-out").exit_code == 0
    assert store.settings()["hold_out"] is False


def test_other_weights_need_new_embeddings(folder: Path) -> None:
    run("embed", folder / "work", *QUICK)
    weights = load_model("lenet", 3, 1).state_dict()
    torch.save({name: value + 0.1 for name, value in weights.items()}, folder / "weights.pt")
    for command in (("next", "--budget", 2), ("train",), ("embed",)):
        refused = run(command[0], folder / "work", *command[1:], *QUICK).exception
        assert isinstance(refused, WorkspaceError) and f"rarefish embed {folder / 'work'} --again" in str(refused)
    done = run("embed", folder / "work", "--again", *QUICK)
    assert "48 were computed now" in done.output


def test_init_reports_near_copies_of_an_embedded_workspace(folder: Path) -> None:
    run("embed", folder / "work", *QUICK)
    draw(folder / "pool" / "new.png", 1, 5)
    assert "near-copies of each other" in init(folder).output
