"""What a selection depends on: each thing that is changed is found and named, and nothing else is."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Subset, TensorDataset

from rarefish import MonteCarlo, Posterior, select
from rarefish.data.arrays import Pixels
from rarefish.data.image_files import ImageFiles, read_folder
from rarefish.data.open_dataset import open_pool
from rarefish.data.parquet import open_parquet
from rarefish.distributed.executor import SingleProcess
from rarefish.distributed.fingerprints import differences, digest_code, digest_data, digest_tensor
from rarefish.models.loading import load_model
from tests.cases import labeled

NET = """
from torch import nn
from helping_{name} import scale

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.below = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.top = nn.Linear(24, 2)
        self.register_buffer("unsaved", self.top.bias.detach().clone(), persistent=False)

    def forward(self, images):
        return scale(self.top(self.below(images).flatten(1)))

def make():
    return Net()
"""


class StoppedError(Exception):
    """Before any work."""


class Listening(SingleProcess):
    """An executor that records what a run depends on and stops before any work."""

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> SingleProcess:
        self.heard = dict(inputs())
        raise StoppedError


@dataclass
class Run:
    """The arguments of select(), over files in a folder."""

    folder: Path
    model: nn.Module
    more: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (12, 12)
    scale: dict[str, Any] = field(default_factory=dict)

    def inputs(self) -> dict[str, str]:
        executor = Listening()
        pool = open_pool(self.folder / "pool", self.size, "L", **self.scale)
        validation = self.more.pop("validation", None) or read_folder(self.folder / "trusted", size=(12, 12), mode="L")
        told: dict[str, Any] = {
            "budget": 3,
            "method": "fisher",
            "exclude": [1, 5],
            "labeled": {2: 0},
            "layers": ("below", "top"),
            **self.more,
        }
        with pytest.raises(StoppedError):
            select(self.model, pool, validation, progress=False, executor=executor, **told)
        return executor.heard


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    rng = np.random.default_rng(0)
    for name, count in (("pool/a", 9), ("trusted/cat", 6), ("trusted/dog", 6)):
        (tmp_path / name).mkdir(parents=True)
        for number in range(count):
            path = tmp_path / name / f"{number:02}.bmp"  # of the same size whatever is in them
            Image.fromarray(rng.integers(0, 255, (12, 12), dtype=np.uint8)).save(path)
            os.utime(path, ns=(10**18, 10**18))
    name = tmp_path.name
    (tmp_path / "net.py").write_text(NET.format(name=name))
    (tmp_path / f"helping_{name}.py").write_text("def scale(logits):\n    return logits * 1.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return Run(tmp_path, load_model(f"{tmp_path / 'net.py'}:make", 2, 1))


def touch(run: Run) -> None:
    os.utime(run.folder / "pool/a/03.bmp", ns=(1, 1))


def add(run: Run) -> None:
    Image.new("L", (12, 12)).save(run.folder / "pool/a/99.bmp")


def swap(run: Run) -> None:
    first, second, aside = run.folder / "trusted/cat/00.bmp", run.folder / "trusted/cat/01.bmp", run.folder / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def move_label(run: Run) -> None:
    (run.folder / "trusted/cat/05.bmp").rename(run.folder / "trusted/dog/06.bmp")


def change_label(run: Run) -> None:
    found = read_folder(run.folder / "trusted", size=(12, 12), mode="L")
    run.more["validation"] = replace(found, labels=(1, *found.labels[1:]))


def change(name: str, by: Callable[[Any], Any]) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        with torch.no_grad():
            by(run.model.get_submodule(name))

    act.__name__ = name
    return act


def rewrite(file: str, old: str, new: str) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        path = run.folder / file.format(name=run.folder.name)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    act.__name__ = f"{file}: {new}"
    return act


def give(**more: Any) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.more.update(more)

    act.__name__ = ", ".join(more)
    return act


def prepare(**fields: Any) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        for name, value in fields.items():
            setattr(run, name, value)

    act.__name__ = ", ".join(fields)
    return act


FLAGS = [True, *[False] * 11]


@pytest.mark.parametrize(
    ("act", "names"),
    [
        (touch, ["pool files"]),
        (add, ["pool length", "pool files", "pool labels", "excluded images"]),
        (swap, ["validation files"]),
        (move_label, ["validation files", "validation labels"]),
        (change_label, ["validation labels"]),
        (prepare(size=(12, 13)), ["pool preprocessing"]),
        (prepare(scale={"mean": (0.5,)}), ["pool preprocessing"]),
        (prepare(scale={"std": (0.5,)}), ["pool preprocessing"]),
        (change("top", lambda top: top.weight.mul_(2)), ["model weights"]),
        (change("below.1", lambda norm: norm.running_mean.add_(1)), ["model weights"]),
        (change("", lambda net: net.unsaved.add_(1)), ["model weights"]),
        (change("below.1", lambda norm: setattr(norm, "eps", 0.1)), ["model structure"]),
        (change("top", lambda top: top.requires_grad_(False)), ["model structure"]),
        (rewrite("net.py", "flatten(1))", "flatten(1)).relu()"), ["model code"]),
        (rewrite("helping_{name}.py", "1.5", "0.5"), ["model code"]),
        (give(budget=4), ["budget"]),
        (give(method="coverage"), ["method"]),
        (give(kernel="features"), ["kernel"]),
        (give(labels="density"), ["label estimator"]),
        (give(labels=MonteCarlo(samples=7)), ["label estimator", "precision"]),
        (give(labels=Posterior(lr=0.5)), ["label estimator"]),
        (give(layers=("top", "below")), ["layers"]),
        (give(precision="float32"), ["precision"]),
        (give(exclude=[1, 6]), ["excluded images"]),
        (give(labeled={2: 1}), ["labeled images"]),
        (give(failures=FLAGS), ["failure flags"]),
        (give(generator=torch.Generator().manual_seed(1)), ["random generator"]),
        (give(collate_fn=lambda items: torch.stack([item[0] for item in items])), ["collate function"]),
    ],
)
def test_what_is_changed_is_found_and_named(run: Run, act: Callable[[Run], None], names: list[str]) -> None:
    before = run.inputs()
    assert run.inputs() == before
    act(run)
    assert differences(before, run.inputs()) == names


def test_a_copy_elsewhere_with_its_times_is_the_same(run: Run, tmp_path: Path) -> None:
    before = run.inputs()
    shutil.copytree(run.folder, tmp_path.parent / f"{tmp_path.name}-copy")
    assert replace(run, folder=tmp_path.parent / f"{tmp_path.name}-copy").inputs() == before


def test_files_that_cannot_be_looked_at_stop_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    paths = (tmp_path / "none.png", tmp_path / "pipe.png", tmp_path / "nul\0.png", tmp_path)
    data = ImageFiles(paths, (0,) * 4, ("a",))
    assert digest_data(data) == digest_data(data)
    before = digest_data(data, with_contents=True)
    (tmp_path / "none.png").write_bytes(b"now it is there")
    assert differences(before, digest_data(data, with_contents=True)) == ["files"]


def test_parquet_files_are_known_by_size_and_time(run: Run) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = run.folder / "a.parquet"
    parquet.write_table(pa.table({"image": [(run.folder / "pool/a/00.bmp").read_bytes()] * 5}), path)
    data = open_parquet([path], (12, 12), "L")
    before = digest_data(data)
    assert digest_data(open_parquet([path], (12, 12), "L")) == before
    assert differences(before, digest_data(replace(data, mode="RGB"))) == ["preprocessing"]
    os.utime(path, ns=(1, 1))
    assert differences(before, digest_data(data)) == ["files"]


class Items(list[Any]):
    """A dataset of the user's own."""


def test_data_in_memory_is_known_by_all_of_it() -> None:
    data = labeled(30)
    before = digest_data(data)
    assert digest_data(TensorDataset(*(part.clone() for part in data.tensors))) == before
    for part, name in ((0, "images"), (1, "labels")):
        changed = [tensor.clone() for tensor in data.tensors]
        changed[part][17] += 1
        assert name in differences(before, digest_data(TensorDataset(*changed)))
    some = digest_data(Subset(data, [1, 2]))
    assert differences(some, digest_data(Subset(data, [1, 3]))) == ["subset"]
    pixels = Pixels(torch.zeros(9, 2, 2, 1, dtype=torch.uint8), torch.arange(9), torch.arange(9), *torch.ones(2, 1))
    before = digest_data(pixels)
    changed = replace(pixels, bytes=pixels.bytes.clone())
    changed.bytes[8] += 1
    assert differences(before, digest_data(changed)) == ["images"]


def test_data_of_the_users_own_is_known_by_some_items() -> None:
    data = Items((image, int(label)) for image, label in zip(*labeled(30).tensors, strict=True))
    before = digest_data(data)
    assert digest_data(Items(data)) == before
    data[-1] = (data[-1][0], data[-1][1] + 1)
    assert differences(before, digest_data(data)) == ["items"]
    assert differences(before, digest_data(Items(data[:-1]))) == ["length", "items"]

    class Augmented(Items):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[0] + torch.rand(1), 0

    assert digest_data(Augmented(data)) == digest_data(Augmented(data))  # such data warn; they are not another set


def test_code_without_a_file_is_known_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def define(source: str) -> type:
        space: dict[str, Any] = {"__name__": "of_a_notebook"}
        exec(source, space)
        return space["Net"]

    one = define("class Net:\n    def forward(self, x):\n        return x * 2\n")
    same = define("\n\nclass Net:\n    def forward(self, x):\n        return x * 2\n")
    other = define("class Net:\n    def forward(self, x):\n        return x * 3\n")
    assert "of_a_notebook" not in sys.modules
    assert digest_code([one]) == digest_code([same]) != digest_code([other])


def test_the_code_of_rarefish_and_torch_is_known_by_their_versions() -> None:
    assert digest_code([MonteCarlo, nn.Linear]) == digest_code([])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex64])
def test_tensors_of_any_kind_have_a_hash(dtype: torch.dtype) -> None:
    value = torch.arange(6).reshape(2, 3).to(dtype)
    assert digest_tensor(value) == digest_tensor(value.T.contiguous().T)
    assert len({digest_tensor(v) for v in (value, value.T, value[:0], value[0, 0], value[:1])}) == 5


def test_the_hash_of_a_large_tensor_does_not_depend_on_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.randn(10, 7)
    before = digest_tensor(value)
    monkeypatch.setattr("rarefish.distributed.fingerprints.AT_ONCE", 15)
    assert digest_tensor(value) == before
