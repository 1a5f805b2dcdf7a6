"""Training learns, repeats itself by seed, keeps the best epoch, and a kill does not change how it ends."""

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
from rarefish.data.lazy_images import Stored
from rarefish.errors import ArgumentError, DataError, LabelError, ModelError, NotFiniteError
from rarefish.training.config import Training
from rarefish.training.evaluation import evaluate
from rarefish.training.loop import draw_order, fit, in_batches, read_images
from tests import forked_processes
from tests.training.small import SMALL, blobs, fine_tune, net, same

ROOT = Path(__file__).parents[2]


def tensors(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % 3
    images = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.3
    return images + labels[:, None, None, None] - 1, labels


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def test_learns_and_repeats_itself() -> None:
    images, labels = tensors()
    runs = []
    for _ in range(2):
        net = small()
        fit(net, images, labels, Training(epochs=40), torch.Generator().manual_seed(1))
        runs.append(net)
    assert evaluate(runs[0], TensorDataset(images, labels), 3).accuracy > 0.95
    assert all(torch.equal(a, b) for a, b in zip(runs[0].parameters(), runs[1].parameters(), strict=True))
    assert not runs[0].training


def test_the_learning_rate_falls_as_the_settings_say() -> None:
    """One weight, a constant gradient of 1 and no momentum: the weight tells the sum of learning rates."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Logits (-40, 40) and label 0: the loss rises by 1 with every step of the weight, whatever its value.
            return torch.stack([-40 - self.weight * x[:, 0], torch.full((len(x),), 40.0)], dim=1)

    net, told = One(), []
    settings = Training(epochs=5, batch_size=1, lr=1.0, momentum=0.0, gamma=0.1, step_size=2)
    zeros = torch.zeros(1, dtype=torch.long)
    fit(net, torch.ones(1, 1), zeros, settings, torch.Generator(), on_epoch=lambda model: told.append(model.training))
    assert net.weight.item() == pytest.approx(-(1 + 1 + 0.1 + 0.1 + 0.01), abs=1e-5)
    assert told == [False] * 5


def test_read_images_keeps_the_order() -> None:
    images, labels = tensors(9)
    assert torch.equal(read_images(TensorDataset(images, labels), [8, 0, 3]), images[[8, 0, 3]])


def test_weights_are_pulled_to_zero_and_biases_are_not() -> None:
    net = small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    silent = torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        net.get_parameter("3.bias").copy_(torch.tensor([50.0, 0, 0]))
    fit(net, *silent, Training(epochs=1, batch_size=4, lr=0.1, weight_decay=0.5), torch.Generator())
    torch.testing.assert_close(net.state_dict()["1.weight"], before["1.weight"] * 0.95)
    torch.testing.assert_close(net.state_dict()["1.bias"], before["1.bias"])


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (9, 5, [5, 4]),
        (10, 5, [5, 5]),
        (11, 5, [5, 6]),
        (1, 5, [1]),
        (0, 5, []),
        (130, 32, [32, 32, 32, 34]),
        (132, 32, [32, 32, 32, 32, 4]),
        (3, 32, [3]),
    ],
)
def test_no_batch_is_a_little_rest(count: int, size: int, sizes: list[int]) -> None:
    assert [len(part) for part in in_batches(torch.arange(count), Training(batch_size=size))] == sizes


def test_smooth_labels_and_low_precision_are_learned_from() -> None:
    images, labels = tensors()
    net = small()
    fit(net, images, labels, Training(epochs=40, label_smoothing=0.1, precision="bfloat16"), torch.Generator())
    assert evaluate(net, TensorDataset(images, labels), 3).accuracy > 0.95
    assert net(images).softmax(dim=1).amax(dim=1).mean() < 0.97  # a label of 0.93 is aimed at, not of 1


class KilledError(Exception):
    """Stands for the end of a process."""


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_training_goes_on_from_its_last_epoch(is_stored: bool, tmp_path: Path) -> None:
    images, labels = tensors()
    source = Stored(TensorDataset(images), range(60)) if is_stored else images
    settings = Training(epochs=6, batch_size=7, momentum=0.9, step_size=2, shift=1, flip=True)
    told: list[nn.Module] = []

    def kill(model: nn.Module) -> None:
        told.append(model)
        if len(told) == 4:
            raise KilledError

    whole, begun, again, other = (small() for _ in range(4))
    path = tmp_path / "epoch.pt"
    fit(whole, source, labels, settings, torch.Generator().manual_seed(1))
    with pytest.raises(KilledError):
        fit(begun, source, labels, settings, torch.Generator().manual_seed(1), on_epoch=kill, checkpoint=path)
    generator = torch.Generator().manual_seed(1)
    fit(again, source, labels, settings, generator, on_epoch=told.append, checkpoint=path)
    assert len(told) == 6  # the four before the kill, and the two that were left
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    # What is finished is not trained again; what would be another training does not take it up.
    fit(other, source, labels, settings, torch.Generator().manual_seed(1), on_epoch=told.append, checkpoint=path)
    assert len(told) == 6 and torch.equal(other.state_dict()["1.weight"], whole.state_dict()["1.weight"])
    fit(small(), source, labels, settings, torch.Generator().manual_seed(2), on_epoch=told.append, checkpoint=path)
    assert len(told) == 12


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


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_learns_from_files_and_repeats_itself(files: ImageFiles, optimizer: str) -> None:
    training = replace(SMALL, optimizer=optimizer, epochs=12, balanced=True, label_smoothing=0.1)
    one, other = net(12), net(12)
    before = torch.get_rng_state()
    fitted = fine_tune(one, files, files, training)
    assert fitted == fine_tune(other, files, files, training) and same(one, other)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random state is untouched"
    assert fitted.accuracy > 0.9 and len(fitted.recall) == 3 and fitted.epochs == 12
    assert fitted.history[-1].loss < fitted.history[0].loss and not one.training


def test_workers_change_nothing(files: ImageFiles) -> None:
    one, other = net(12), net(12)
    training = replace(SMALL, epochs=1)
    assert fine_tune(one, files, files, training) == fine_tune(
        other, files, files, replace(training, num_workers=2)
    ) and same(one, other)


def test_the_model_has_the_weights_of_that_epoch() -> None:
    model, states = net(), []
    training = replace(SMALL, epochs=8, lr=0.05)
    fitted = fine_tune(
        model,
        blobs(12),
        blobs(30, seed=1),
        training,
        on_epoch=lambda model: states.append({k: v.clone() for k, v in model.state_dict().items()}),
    )
    best = states[fitted.best_epoch - 1]
    assert len(states) == 8 and all(torch.equal(value, best[name]) for name, value in model.state_dict().items())


def test_patience_ends_it() -> None:
    fitted = fine_tune(net(), blobs(30), blobs(9), replace(SMALL, epochs=50, patience=3))
    assert fitted.epochs == fitted.best_epoch + 3 < 50


@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_labels(count: int) -> None:
    """One image alone, classes with none, and a last batch of one."""
    data = Subset(blobs(9), list(range(count)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    fitted = fine_tune(model, data, blobs(2), replace(SMALL, balanced=count == 2))
    assert fitted.epochs == 4 and math.isnan(fitted.recall[2]) and 0 <= fitted.best.balanced_accuracy <= 1


@pytest.mark.parametrize(("rest", "is_too_little"), [(1, True), (2, True), (3, False)])
def test_norms_learn_nothing_from_a_little_rest(rest: int, is_too_little: bool) -> None:
    """In the last batch of an epoch, which a norm would remember best."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    seen: list[int] = []
    model[2].register_forward_hook(lambda norm, inputs, _: seen.append(len(inputs[0])) if norm.training else None)
    fine_tune(model, blobs(24 + rest), blobs(9), replace(SMALL, batch_size=24, epochs=2))
    assert seen == ([24, 24] if is_too_little else [24, rest, 24, rest])


def test_files_that_broke_are_left_out_and_told(files: ImageFiles) -> None:
    trusted = replace(files, paths=files.paths[1::2], labels=files.labels[1::2])
    files.paths[4].write_bytes(b"no image")
    fitted = fine_tune(net(12), files, trusted)
    assert list(fitted.unreadable) == [4] and "cannot be decoded" in fitted.unreadable[4]
    for path in files.paths[::2]:
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="None of the 11 images can be read: .*cannot be decoded"):
        fine_tune(net(12), replace(files, paths=files.paths[::2], labels=files.labels[::2]), trusted)


def test_order() -> None:
    labels, generator = torch.tensor([0] * 90 + [2] * 9 + [-1]), torch.Generator().manual_seed(0)
    assert sorted(draw_order(labels, Training(), generator).tolist()) == list(range(99))
    balanced = Training(balanced=True)
    drawn = labels[draw_order(labels, balanced, generator)]
    assert len(drawn) == 99 and 30 < int((drawn == 2).sum()) < 70 and int(drawn.min()) == 0
    assert set(draw_order(labels.repeat(20), balanced, generator).tolist()) <= set(range(2000)) - set(
        range(99, 2000, 100)
    )


def test_weights_that_are_frozen_stay(tmp_path: Path) -> None:
    model = net()
    first = model[0].weight.requires_grad_(False).clone()  # pyright: ignore
    fine_tune(model, blobs(9), blobs(9))
    assert torch.equal(model[0].weight, first) and not model[0].weight.requires_grad  # pyright: ignore
    with pytest.raises(ModelError, match="No parameter of the model requires a gradient"):
        fine_tune(net().requires_grad_(False), blobs(9), blobs(9))


class Mortal:
    """A dataset that dies at its n-th item."""

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
    training = replace(SMALL, optimizer=optimizer, epochs=6, batch_size=4, balanced=True, warmup=0.2)
    whole = net()
    expected = fine_tune(whole, Mortal(data, 0), validation, training, checkpoint=tmp_path / "whole.pt")
    for lives in range(10, 70, 7):
        path.unlink(missing_ok=True)
        for lives_now in (lives, 25, 0):
            model = net()
            try:
                fitted = fine_tune(model, Mortal(data, lives_now), validation, training, checkpoint=path)
                assert fitted == expected and same(model, whole)
            except KilledError:
                assert lives_now
    told: list[nn.Module] = []
    again = net()
    assert fine_tune(again, Mortal(data, 0), validation, training, checkpoint=path, on_epoch=told.append) == expected
    assert same(again, whole) and not told, "what is finished is not done again"


RUN = """
import sys, time
from pathlib import Path
import torch
sys.path[:0] = [sys.argv[1], sys.argv[2]]
torch.set_num_threads(1)
from rarefish.data.image_files import read_folder
from tests.training.small import fine_tune, net
from tests.training.test_loop import SLOW

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
fine_tune(model, files, files, SLOW, checkpoint=Path(sys.argv[4]))
torch.save(model.state_dict(), sys.argv[4] + ".weights")
"""
SLOW = replace(SMALL, epochs=8)


@pytest.mark.slow
def test_killed_with_signal_9_it_ends_the_same(files: ImageFiles, tmp_path: Path) -> None:
    def start(checkpoint: Path, pause: float) -> "subprocess.Popen[bytes]":
        places = (str(ROOT / "src"), str(ROOT), str(tmp_path / "images"), str(checkpoint), str(pause))
        return forked_processes.Popen([sys.executable, "-c", RUN, *places])

    torn, undisturbed = tmp_path / "torn.pt", net(12)
    process = start(torn, 0.005)
    fine_tune(undisturbed, files, files, SLOW)
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
        fine_tune(model, blobs(9), blobs(9), replace(SMALL, precision=precision))
        assert {(True, expected), (False, expected)} <= kinds
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_what_cannot_be_learned_from_is_said_before_the_work() -> None:
    nothing = TensorDataset(torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.long))
    for data, validation, name in ((nothing, blobs(3), "training"), (blobs(3), nothing, "validation")):
        with pytest.raises(DataError, match=f"The {name} set is empty"):
            fine_tune(net(), data, validation)
    unlabeled = TensorDataset(torch.zeros(3, 1, 6, 6), torch.tensor([0, -1, 7]))
    with pytest.raises(LabelError, match="labels must be 0 to 2, but found -1, 7 at index 1, 2"):
        fine_tune(net(), unlabeled, blobs(3))
    flat = TensorDataset(torch.zeros(3, 9), torch.arange(3))
    with pytest.raises(ArgumentError, match=r"zoom needs images of shape \(channels, height, width\), not \(9,\)"):
        fine_tune(nn.Linear(9, 3), flat, flat)
    assert fine_tune(nn.Linear(9, 3), flat, flat, replace(SMALL, zoom=0.0, flip=False)).epochs == 4
    with pytest.raises(NotFiniteError, match="in epoch 1. Lower lr, which is 1e"):
        fine_tune(
            net(), TensorDataset(torch.full((3, 1, 6, 6), math.inf), torch.arange(3)), blobs(3), replace(SMALL, lr=1e30)
        )
