"""Training on files: it learns, keeps the best epoch, copes with few labels, and no kill changes how it ends."""

import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from rarefish.data.image_files import ImageFiles, read_folder
from rarefish.errors import ArgumentError, DataError, LabelError, ModelError, NotFiniteError
from rarefish.training.config import Course, Epoch, TrainingResult
from rarefish.training.image_training import augment, draw_order, fit_files

ROOT = Path(__file__).parents[2]
SMALL = Course(epochs=4, batch_size=8, lr=0.01)


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    """Bright images, dark ones, and those bright at the top."""
    rng = np.random.default_rng(0)
    for name, top, bottom in (("bright", 200, 200), ("dark", 50, 50), ("mixed", 200, 50)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(7):
            pixels = np.concatenate([np.full((6, 12), top), np.full((6, 12), bottom)]) + rng.normal(0, 15, (12, 12))
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(tmp_path / "images" / name / f"{number}.png")
    return read_folder(tmp_path / "images", size=(12, 12), mode="L")


def blobs(count: int, seed: int = 0) -> TensorDataset:
    labels = torch.arange(count) % 3
    images = torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed)) * 0.3
    return TensorDataset(images + labels[:, None, None, None] - 1, labels)


def net(size: int = 6, num_classes: int = 3) -> nn.Module:
    """Dropout and BatchNorm, which draw and remember."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)]
        return nn.Sequential(*layers, nn.Linear(6 * (size - 2) ** 2, num_classes))


def fit(model: nn.Module, data: Any, validation: Any, course: Course = SMALL, **more: Any) -> TrainingResult:
    return fit_files(model, data, validation, course, torch.Generator().manual_seed(3), progress=False, **more)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_learns_from_files_and_repeats_itself(files: ImageFiles, optimizer: str) -> None:
    course = replace(SMALL, optimizer=optimizer, epochs=12, balanced=True, label_smoothing=0.1)
    one, other = net(12), net(12)
    before = torch.get_rng_state()
    fitted = fit(one, files, files, course)
    assert fitted == fit(other, files, files, course) and same(one, other)
    assert torch.equal(torch.get_rng_state(), before), "the caller's chance is untouched"
    assert fitted.accuracy > 0.9 and len(fitted.recall) == 3 and fitted.epochs == 12
    assert fitted.history[-1].loss < fitted.history[0].loss and not one.training


def test_workers_change_nothing(files: ImageFiles) -> None:
    one, other = net(12), net(12)
    course = replace(SMALL, epochs=1)
    assert fit(one, files, files, course) == fit(other, files, files, replace(course, workers=2)) and same(one, other)


def test_the_model_has_the_weights_of_that_epoch() -> None:
    model, states = net(), []
    course = replace(SMALL, epochs=8, lr=0.05)
    fitted = fit(
        model,
        blobs(12),
        blobs(30, seed=1),
        course,
        on_epoch=lambda epoch: states.append({k: v.clone() for k, v in model.state_dict().items()}),
    )
    best = states[fitted.best_epoch - 1]
    assert len(states) == 8 and all(torch.equal(value, best[name]) for name, value in model.state_dict().items())


def test_patience_ends_it() -> None:
    fitted = fit(net(), blobs(30), blobs(9), replace(SMALL, epochs=50, patience=3))
    assert fitted.epochs == fitted.best_epoch + 3 < 50


@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_labels(count: int) -> None:
    """One image alone, classes with none, and a last batch of one."""
    data = Subset(blobs(9), list(range(count)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    fitted = fit(model, data, blobs(2), replace(SMALL, balanced=count == 2))
    assert fitted.epochs == 4 and math.isnan(fitted.recall[2]) and 0 <= fitted.best.balanced_accuracy <= 1


@pytest.mark.parametrize(("rest", "is_too_little"), [(1, True), (2, True), (3, False)])
def test_norms_learn_nothing_from_a_little_rest(rest: int, is_too_little: bool) -> None:
    """In the last batch of an epoch, which a norm would remember best."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    seen: list[int] = []
    model[2].register_forward_hook(lambda norm, inputs, _: seen.append(len(inputs[0])) if norm.training else None)
    fit(model, blobs(24 + rest), blobs(9), replace(SMALL, batch_size=24, epochs=2))
    assert seen == ([24, 24] if is_too_little else [24, rest, 24, rest])


def test_files_that_broke_are_left_out_and_told(files: ImageFiles) -> None:
    trusted = replace(files, paths=files.paths[1::2], labels=files.labels[1::2])
    files.paths[4].write_bytes(b"no image")
    fitted = fit(net(12), files, trusted)
    assert list(fitted.unreadable) == [4] and "cannot be decoded" in fitted.unreadable[4]
    for path in files.paths[::2]:
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="None of the 11 images can be read: .*cannot be decoded"):
        fit(net(12), replace(files, paths=files.paths[::2], labels=files.labels[::2]), trusted)


def test_order() -> None:
    labels, chance = torch.tensor([0] * 90 + [2] * 9 + [-1]), torch.Generator().manual_seed(0)
    assert sorted(draw_order(labels, False, chance)) == list(range(99))
    drawn = labels[draw_order(labels, True, chance)]
    assert len(drawn) == 99 and 30 < int((drawn == 2).sum()) < 70 and int(drawn.min()) == 0
    assert set(draw_order(labels.repeat(20), True, chance)) <= set(range(2000)) - set(range(99, 2000, 100))


def test_variations_are_small_and_turn_nothing_where_they_must_not() -> None:
    across = torch.linspace(0, 1, 32).repeat(32, 1).expand(64, 1, 32, 32)
    chance = torch.Generator().manual_seed(0)
    kept, turned = augment(across, False, chance), augment(across, True, chance)
    is_rising = (kept[..., -1] > kept[..., 0]).flatten(1).all(dim=1)
    assert is_rising.all() and float((kept - across).abs().max()) < 0.2 and not torch.equal(kept[0], kept[1])
    assert 16 < int((turned[..., -1] > turned[..., 0]).flatten(1).all(dim=1).sum()) < 48
    plain = torch.full((2, 3, 5, 7), 0.25)
    assert torch.allclose(augment(plain, True, chance), plain), "nothing comes in from outside"


def test_weights_that_are_frozen_stay(tmp_path: Path) -> None:
    model = net()
    first = model[0].weight.requires_grad_(False).clone()  # pyright: ignore
    fit(model, blobs(9), blobs(9))
    assert torch.equal(model[0].weight, first) and not model[0].weight.requires_grad  # pyright: ignore
    with pytest.raises(ModelError, match="No parameter of the model requires a gradient"):
        fit(net().requires_grad_(False), blobs(9), blobs(9))


class KilledError(Exception):
    pass


class Mortal:
    """A data set that dies at its n-th item."""

    def __init__(self, data: Any, lives: int) -> None:
        self.data, self.lives = data, lives
        self.paths = [f"{number}.png" for number in range(len(data))]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.lives -= 1
        if not self.lives:
            raise KilledError
        image, label = self.data[index]
        return image, int(label)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, optimizer: str) -> None:
    data, validation, path = blobs(9), blobs(12, seed=1), tmp_path / "run.pt"
    course = replace(SMALL, optimizer=optimizer, epochs=6, batch_size=4, balanced=True, warmup=0.2)
    whole = net()
    expected = fit(whole, Mortal(data, 0), validation, course, checkpoint=tmp_path / "whole.pt")
    for lives in range(10, 70, 7):
        path.unlink(missing_ok=True)
        for lives_now in (lives, 25, 0):
            model = net()
            try:
                fitted = fit(model, Mortal(data, lives_now), validation, course, checkpoint=path)
                assert fitted == expected and same(model, whole)
            except KilledError:
                assert lives_now
    told: list[Epoch] = []
    again = net()
    assert fit(again, Mortal(data, 0), validation, course, checkpoint=path, on_epoch=told.append) == expected
    assert same(again, whole) and not told, "what is finished is not done again"


RUN = """
import sys, time
from pathlib import Path
import torch
sys.path[:0] = [sys.argv[1], sys.argv[2]]
torch.set_num_threads(1)
from rarefish.data.image_files import read_folder
from tests.training.test_image_training import SLOW, fit, net

class Slow:
    def __init__(self, data):
        self.data, self.paths, self.targets = data, data.paths, data.targets
    def __len__(self):
        return len(self.data)
    def __getitem__(self, index):
        time.sleep(float(sys.argv[5]))
        return self.data[index]

files = Slow(read_folder(sys.argv[3], size=(12, 12), mode="L"))
model = net(12)
fit(model, files, files, SLOW, checkpoint=Path(sys.argv[4]))
torch.save(model.state_dict(), sys.argv[4] + ".weights")
"""
SLOW = replace(SMALL, epochs=8)


@pytest.mark.slow
def test_killed_with_signal_9_it_ends_the_same(files: ImageFiles, tmp_path: Path) -> None:
    def start(checkpoint: Path, pause: float) -> "subprocess.Popen[bytes]":
        places = (str(ROOT / "src"), str(ROOT), str(tmp_path / "images"), str(checkpoint), str(pause))
        return subprocess.Popen([sys.executable, "-c", RUN, *places])

    torn, undisturbed = tmp_path / "torn.pt", net(12)
    process = start(torn, 0.005)
    fit(undisturbed, files, files, SLOW)
    deadline = time.monotonic() + 600
    while not torn.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (tmp_path / "torn.pt.weights").exists()
    done = len(torch.load(torn, weights_only=True)["history"])
    assert 1 <= done < SLOW.epochs
    assert start(torn, 0).wait(60) == 0
    gone_on = net(12)
    gone_on.load_state_dict(torch.load(f"{torn}.weights", weights_only=True))
    assert same(gone_on, undisturbed)


def test_bfloat16_where_it_is_asked_for() -> None:
    for precision, expected in (("bfloat16", torch.bfloat16), ("float32", torch.float32), ("auto", torch.float32)):
        model, kinds = net(), set()
        model[0].register_forward_hook(lambda *told, kinds=kinds: kinds.add((told[0].training, told[2].dtype)))  # pyright: ignore
        fit(model, blobs(9), blobs(9), replace(SMALL, precision=precision))
        assert {(True, expected), (False, expected)} <= kinds
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_what_cannot_be_learned_from_is_said_before_the_work() -> None:
    nothing = TensorDataset(torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.long))
    for data, validation, name in ((nothing, blobs(3), "training"), (blobs(3), nothing, "validation")):
        with pytest.raises(DataError, match=f"The {name} set is empty"):
            fit(net(), data, validation)
    unlabeled = TensorDataset(torch.zeros(3, 1, 6, 6), torch.tensor([0, -1, 7]))
    with pytest.raises(LabelError, match="labels must be 0 to 2; found -1, 7 at index 1, 2"):
        fit(net(), unlabeled, blobs(3))
    flat = TensorDataset(torch.zeros(3, 9), torch.arange(3))
    with pytest.raises(ArgumentError, match=r"augment needs images \(channels, height, width\), not \(9,\)"):
        fit(nn.Linear(9, 3), flat, flat)
    assert fit(nn.Linear(9, 3), flat, flat, replace(SMALL, augment=False)).epochs == 4
    with pytest.raises(NotFiniteError, match="in epoch 1. Lower lr, which is 1e"):
        fit(
            net(), TensorDataset(torch.full((3, 1, 6, 6), math.inf), torch.arange(3)), blobs(3), replace(SMALL, lr=1e30)
        )
