"""embed() against the model itself, and what it does not compute a second time."""

import os
import shutil
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

from rarefish import Embeddings, embed
from rarefish.data.embeddings import open_embeddings
from rarefish.data.image_files import ImageFiles, read_folder
from rarefish.data.reader import Reader
from rarefish.distributed.executor import SingleProcess
from rarefish.embedding import compute
from rarefish.embedding.compute import content_ids, default_layer, first_readable, preprocessing_of
from rarefish.errors import ArgumentError, DataError, LayerError, ModelError, NotFiniteError
from tests.cases import Normed, Plain, Transformer, Vector, images, labeled

ROOT = Path(__file__).parents[2]


def net(seed: int = 0) -> Plain:
    torch.manual_seed(seed)
    return Plain()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that pass through the model, in order."""
    rows: list[int] = []
    run = compute.Features.__call__

    def counted(self: compute.Features, batch: Tensor, index: np.ndarray) -> np.ndarray:
        rows.extend(index.tolist())
        return run(self, batch, index)

    monkeypatch.setattr(compute.Features, "__call__", counted)
    return rows


@pytest.mark.parametrize("build", [Plain, Normed, Vector, Transformer])
def test_the_default_layer_is_the_input_of_the_classifier(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, data = build().train(), labeled(11, 1)
    found = embed(model, data, batch_size=4, progress=False)
    with torch.no_grad():
        logits = model.eval()(data.tensors[0])
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        assert torch.allclose(last(torch.from_numpy(found.values)), logits, atol=1e-5)
    assert found.labels is not None and found.labels.tolist() == data.tensors[1].tolist()
    assert not found.unreadable and found.path is None and found.ids is not None


def test_other_layers_outputs_and_types() -> None:
    model, data = net(), labeled(9, 1)
    x = data.tensors[0]
    with torch.no_grad():
        conv1 = model.conv1(x)
    for layer, expected in [("conv1", conv1.mean(dim=(2, 3))), ("conv2:input", conv1.tanh().mean(dim=(2, 3)))]:
        found = embed(model, data, layer=layer, progress=False)
        assert np.allclose(found.values, expected, atol=1e-6)
    with torch.no_grad():
        assert np.allclose(embed(model, data, layer="", progress=False).values, model(x), atol=1e-6)
    half = embed(model, data, layer="conv1", dtype="float16", progress=False)
    assert half.values.dtype == np.float16
    assert np.allclose(half.values, conv1.mean(dim=(2, 3)), atol=1e-3)
    backbone = nn.Sequential(nn.Conv2d(2, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        assert np.allclose(embed(backbone, data, progress=False).values, backbone(x), atol=1e-6)
    assert default_layer(None) == "" and default_layer("fc") == "fc:input"


def test_the_state_of_the_model_and_its_training_mode_are_restored() -> None:
    model = Normed().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    embed(model, labeled(6, 1), progress=False)
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_ten_more_images_cost_ten(tmp_path: Path, computed: list[int]) -> None:
    model, data, path = net(), labeled(30, 1), tmp_path / "a" / "pool.safetensors"
    first = embed(model, data, path=path, progress=False)
    assert isinstance(first.values, np.memmap) and computed == list(range(30))
    order = torch.randperm(30)
    new = labeled(10, 2)
    more = TensorDataset(*(torch.cat([b, a[order]]) for a, b in zip(data.tensors, new.tensors, strict=True)))
    computed.clear()
    second = embed(model, more, path=path, progress=False)
    assert computed == list(range(10))
    alone = embed(model, more, progress=False)
    assert np.allclose(second.values, alone.values, atol=1e-6) and second.ids is not None and alone.ids is not None
    assert second.ids.tolist() == alone.ids.tolist() and second.model == alone.model
    computed.clear()
    embed(model, more, path=path, progress=False)
    assert computed == [] and [file.name for file in path.parent.iterdir()] == ["pool.safetensors"]
    fewer = embed(model, Subset(more, [3, 20]), path=path, progress=False)
    assert computed == [] and np.array_equal(fewer.values, second.values[[3, 20]])


def subset(data: Any, rows: list[int]) -> Subset[Any]:
    return Subset(data, rows)


def folder_of(path: Path, count: int, seed: int = 0) -> ImageFiles:
    rng = np.random.default_rng(seed)
    for i in range(count):
        (path / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(path / f"class{i % 2}" / f"{i:03}.png")
    return read_folder(path, size=(8, 8))


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))


def test_files_are_identified_by_content_and_read_only_if_new(
    tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, path, model = folder_of(tmp_path / "images", 12), tmp_path / "x.safetensors", small_net()
    first = embed(model, data, path=path, progress=False)
    (tmp_path / "images/class0/000.png").rename(tmp_path / "images/class1/zzz.png")
    folder_of(tmp_path / "more", 2, seed=5)
    shutil.move(tmp_path / "more/class0/000.png", tmp_path / "images/class0/aaa.png")
    computed.clear()
    moved = read_folder(tmp_path / "images", size=(8, 8))
    read: list[int] = []
    load = ImageFiles.__getitem__
    monkeypatch.setattr(ImageFiles, "__getitem__", lambda self, i: (read.append(i), load(self, i))[1])
    second = embed(model, moved, path=path, progress=False)
    new = [i for i, file in enumerate(moved.paths) if file.name == "aaa.png"]
    assert computed == new and set(read) == {0, *new}
    where = {file.name: i for i, file in enumerate(moved.paths)}
    assert np.array_equal(second.values[where["zzz.png"]], first.values[0])
    ids = content_ids(data.only([1]), SingleProcess())
    assert ids is not None and second.ids is not None and first.ids is not None
    assert content_ids(subset(moved, [2]), SingleProcess()) == second.ids[2:3]


def test_unreadable_images_are_left_out_reported_and_tried_again(tmp_path: Path) -> None:
    data, path, model = folder_of(tmp_path / "images", 8), tmp_path / "x.safetensors", small_net()
    whole = data.paths[3].read_bytes()
    data.paths[3].write_bytes(whole[:60])
    data.paths[0].unlink()
    found = embed(model, data, path=path, progress=False)
    assert set(found.unreadable) == {0, 3} and "000.png" in found.unreadable[0]
    assert not found.values[[0, 3]].any() and found.values[[1, 2, 4, 5, 6, 7]].any(axis=1).all()
    assert open_embeddings(path).unreadable == found.unreadable
    with pytest.raises(DataError, match=r"Cannot read image 0"):
        embed(model, data, strict=True, progress=False)
    data.paths[3].write_bytes(whole)
    again = embed(model, data, path=path, progress=False)
    assert set(again.unreadable) == {0} and again.values[3].any()
    in_memory = embed(model, data, progress=False)
    assert set(in_memory.unreadable) == {0} and np.allclose(in_memory.values, again.values, atol=1e-6)
    for file in data.paths[1:]:
        file.unlink()
    with pytest.raises(DataError, match="None of the 8 images can be read"):
        embed(model, data, progress=False)


def test_another_model_layer_or_preprocessing_is_refused(tmp_path: Path) -> None:
    data, path, model = folder_of(tmp_path / "images", 4), tmp_path / "x.safetensors", small_net()
    key = embed(model, data, path=path, progress=False).model
    message = "x.safetensors was computed by another model.*Delete the file .* or give another path"
    with pytest.raises(ArgumentError, match=message):
        embed(model, replace(data, mean=(0.5,)), path=path, progress=False)
    with pytest.raises(ArgumentError, match=message):
        embed(model, data, layer="0", path=path, progress=False)
    with pytest.raises(ArgumentError, match="has 6 channels in float32, not 6 in float16"):
        embed(model, data, dtype="float16", path=path, progress=False)
    with torch.no_grad():
        model.get_parameter("4.weight").fill_(1)  # the classifier does not affect its input
    model.requires_grad_(False)
    model[4] = nn.Linear(6, 5)
    assert embed(model, data, path=path, progress=False).model == key
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(1)
    with pytest.raises(ArgumentError, match=message):
        embed(model, data, path=path, progress=False)
    assert preprocessing_of(data) == preprocessing_of(subset(data, [1])) != preprocessing_of(replace(data, mode="L"))


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    model, data = net(), labeled(4, 1)
    broken = images(5)
    broken[[1, 3]] = torch.nan
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (data, {"path": tmp_path / "x.npy"}, ArgumentError, "must have the suffix .safetensors"),
        (data, {"dtype": "int8"}, ArgumentError, "dtype must be float32 or float16"),
        (data, {"precision": "half"}, ArgumentError, "no precision 'half'"),
        (data, {"layer": "conv3"}, LayerError, "Did you mean conv"),
        (data, {"backend": "tensorrt"}, ArgumentError, "no backend 'tensorrt'"),
        (data, {"batch_size": 0}, ArgumentError, "batch_size must be at least 1"),
        (TensorDataset(broken[:0]), {}, DataError, "The dataset is empty"),
        (TensorDataset(broken), {}, NotFiniteError, "in the embeddings of the images 1, 3"),
    ]
    for given, how, error, message in cases:
        with pytest.raises(error, match=message):
            embed(model, given, progress=False, **how)
    with pytest.raises(ModelError, match="wrapped in DataParallel"):
        embed(nn.DataParallel(model), data, progress=False)
    foreign = tmp_path / "y.safetensors"
    from safetensors.numpy import save_file

    save_file({"embeddings": np.ones((4, 3), np.float32)}, foreign)
    with pytest.raises(DataError, match=r"was not written by rarefish\.embed"):
        embed(model, data, path=foreign, progress=False)


def test_the_first_readable_image_is_the_example() -> None:
    class Broken:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> Tensor:
            if i < 2:
                raise DataError(f"broken {i}")
            return torch.full((2, 8, 8), 7.0)

    assert float(first_readable(Reader(), Broken()).mean()) == 7
    assert set(embed(net(), Broken(), progress=False).unreadable) == {0, 1}


class SlowImages:
    """Images that take time, of which each read is counted in a file."""

    def __init__(self, log: Path, seconds: float) -> None:
        self.data, self.log, self.seconds = images(200, 3), log, seconds

    def __len__(self) -> int:
        return 200

    def content_ids(self, rows: Any) -> list[str]:
        return [f"image{row}" for row in rows]

    def __getitem__(self, index: int) -> Tensor:
        with self.log.open("a") as log:
            log.write(f"{index}\n")
        time.sleep(self.seconds)
        return self.data[index]


def main(folder: Path, seconds: float) -> None:
    """Embeds slowly; started in another process, which is killed, or by torchrun."""
    from rarefish.distributed.torchrun import TorchrunExecutor, join, leave, rank
    from rarefish.embedding import embedding_file

    embedding_file.FLUSH_EVERY = 0.0
    join()
    data = SlowImages(folder / f"log{rank()}", seconds)
    path = folder / "x.safetensors"
    found = embed(net(), data, path=path, batch_size=4, progress=False, executor=TorchrunExecutor())
    memory = embed(net(), data, batch_size=4, progress=False, executor=TorchrunExecutor())
    assert np.allclose(found.values, memory.values, atol=1e-6)
    leave()


def start(folder: Path, seconds: float, *prefix: str) -> "subprocess.Popen[bytes]":
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *prefix, str(Path(__file__)), str(folder), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **paths}, stderr=subprocess.PIPE)


def read_log(folder: Path) -> list[int]:
    return [int(line) for log in sorted(folder.glob("log*")) for line in log.read_text().split()]


@pytest.mark.slow
def test_a_killed_run_computes_only_the_rest(tmp_path: Path) -> None:
    process = start(tmp_path, 0.05)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and len(read_log(tmp_path) if (tmp_path / "log0").exists() else []) < 60:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (tmp_path / "x.safetensors").exists()
    before = read_log(tmp_path)
    (tmp_path / "log0").unlink()
    data = SlowImages(tmp_path / "log0", 0)
    found = embed(net(), data, path=tmp_path / "x.safetensors", batch_size=4, progress=False)
    after = read_log(tmp_path)[1:]  # the first image is read as an example
    assert after == list(range(after[0], 200)) and 40 <= after[0] <= len(before)
    assert np.allclose(found.values, embed(net(), data, progress=False).values, atol=1e-6)


@pytest.mark.slow
def test_torchrun_gives_the_same_file(tmp_path: Path) -> None:
    process = start(tmp_path, 0.0, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
    _, error = process.communicate(timeout=500)
    assert process.returncode == 0, error.decode()[-2000:]
    alone = embed(net(), SlowImages(tmp_path / "own", 0), path=tmp_path / "alone.safetensors", progress=False)
    together = open_embeddings(tmp_path / "x.safetensors")
    assert np.allclose(together.values, alone.values, atol=1e-6) and together.model == alone.model
    assert together.ids is not None and alone.ids is not None and np.array_equal(together.ids, alone.ids)
    counts = [len(read_log_of(tmp_path / f"log{rank}")) for rank in range(3)]
    assert all(130 <= count <= 230 for count in counts)  # a third in the file, a third in memory, and some as examples


def read_log_of(path: Path) -> list[str]:
    return path.read_text().split()


@pytest.mark.slow
@pytest.mark.xdist_group("onnx")
def test_many_images_use_onnx_runtime_and_agree_with_torch() -> None:
    pytest.importorskip("onnxruntime")
    data = TensorDataset(torch.randn(300, 3, 16, 16))
    model = small_net()
    fast, slow = embed(model, data, progress=False), embed(model, data, backend="torch", progress=False)
    assert np.abs(fast.values - slow.values).max() <= 1e-4 * np.abs(slow.values).max()
    assert not np.array_equal(fast.values, slow.values) and fast.model == slow.model


def test_bfloat16_and_device_are_honored() -> None:
    model, data = net(), labeled(5, 1)
    exact, rounded = (embed(model, data, precision=p, device="cpu", progress=False) for p in ("float32", "bfloat16"))
    difference = np.abs(exact.values - rounded.values).max()
    assert 0 < difference < 0.05


def test_pool_labels_that_are_all_unknown_are_no_labels() -> None:
    unknown = embed(net(), TensorDataset(images(4), torch.full((4,), -1)), progress=False)
    assert isinstance(unknown, Embeddings) and unknown.labels is None


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
