"""ONNX Runtime gives torch's features, a changed model is exported again, and torch takes over where it must."""

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rarefish.errors import ArgumentError, DataError, LayerError, ModelError
from rarefish.fisher import describe
from rarefish.models.efficientnet_lite import weights_file
from rarefish.models.networks import build_model, draw_weights
from rarefish.ops import onnx_runtime
from rarefish.ops.onnx_runtime import KEPT, OnnxBackbone, cache_folder

pytestmark = pytest.mark.xdist_group("onnx")  # the first export imports for seconds
needs_onnx = pytest.mark.skipif(
    any(onnx_runtime.find_spec(name) is None for name in onnx_runtime.PACKAGES), reason="pip install 'rarefish[onnx]'"
)


class Small(nn.Module):
    """Changes its input and the convolution's output in place; then tokens with attention, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.tokens = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.classifier = nn.Linear(8, 5)
        self.unused = nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu_(self.norm(self.conv(images.mul_(0.5))))
        return self.classifier(self.tokens(x.flatten(2).transpose(1, 2)).mean(dim=1))


def small(seed: int = 0) -> Small:
    model = draw_weights(Small(), torch.Generator().manual_seed(seed))
    model.norm.running_mean = torch.linspace(-0.5, 0.5, 8)
    return model


def noise(count: int, size: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(3))


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "layers", "size"),
    [
        (small, ("norm", "tokens", ""), 16),
        (lambda: build_model("resnet10", 3, 3, torch.Generator().manual_seed(0)), ("layer3",), 32),
    ],
    ids=["small", "resnet10"],
)
def test_the_features_are_those_of_torch_and_of_a_selection(
    make: Callable[[], nn.Module], layers: tuple[str, ...], size: int, tmp_path: Path
) -> None:
    """For any number of images; in the layer `norm` they are those after the ReLU that works in place."""
    model, images = make().train(), noise(7, size)
    modes = {name: module.training for name, module in model.named_modules()}
    for layer in layers:
        before = images.clone()
        backbone = OnnxBackbone(model, layer, images[:2], backend="onnx", folder=tmp_path)
        plain = OnnxBackbone(model, layer, images[:2], backend="torch")
        assert (backbone.backend, plain.backend) == ("onnx", "torch") and 0 < backbone.difference < 1e-4
        for count in (1, 2, 7):
            expected = plain(images[:count])
            assert expected.shape == (count, backbone.width) and expected.dtype == torch.float32
            torch.testing.assert_close(backbone(images[:count]), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(images, before)
        if layer:
            torch.testing.assert_close(plain(images), describe(model, list(images), layers=[layer]).features)
        else:
            torch.testing.assert_close(plain(images), model.eval()(images.clone()).detach())
            model.train()
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@needs_onnx
@pytest.mark.slow
@pytest.mark.skipif(weights_file() is None, reason="pip install 'rarefish[pretrained]'")
def test_the_example_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/pretrained.md").read_text()
    (example,) = re.findall(r"```python\n(import torch\n.*?)```", guide, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["features"], Tensor) and names["features"].shape == (4, 1280)
    assert capsys.readouterr().out.strip() == "onnx"
    model, images, backbone = names["model"], names["images"], names["backbone"]
    assert isinstance(model, nn.Module) and isinstance(images, Tensor) and isinstance(backbone, OnnxBackbone)
    plain = OnnxBackbone(model, "avgpool", images, backend="torch")
    assert 0 < backbone.difference < 1e-4 and plain.backend == "torch"
    for count in (1, 4):
        torch.testing.assert_close(backbone(images[:count]), plain(images[:count]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(plain(images), describe(model, list(images), layers=["avgpool"]).features)


@needs_onnx
def test_the_number_of_threads_is_passed_on(tmp_path: Path) -> None:
    for given, expected in ((3, 3), (None, torch.get_num_threads())):
        backbone = OnnxBackbone(Convolution(), "conv", noise(1), num_threads=given, folder=tmp_path)
        assert backbone.session.get_session_options().intra_op_num_threads == expected


@needs_onnx
@pytest.mark.slow
def test_a_model_is_exported_once_and_again_when_its_weights_or_its_code_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)\n"
        "    def forward(self, images):\n        return self.fc(self.conv(images).sigmoid().mean(dim=(2, 3)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(code: str) -> nn.Module:
        (tmp_path / "net_of_a_test.py").write_text(code)
        monkeypatch.delitem(sys.modules, "net_of_a_test", raising=False)
        return draw_weights(__import__("net_of_a_test").Net(), torch.Generator().manual_seed(0))

    exported = []
    real = onnx_runtime.export
    monkeypatch.setattr(onnx_runtime, "export", lambda *given: exported.append(given[1]) or real(*given))

    def check(model: nn.Module, layer: str, count: int, num_files: int) -> None:
        found = OnnxBackbone(model, layer, noise(2), backend="onnx", folder=tmp_path / "cache")(noise(5))
        expected = OnnxBackbone(model, layer, noise(2), backend="torch")(noise(5))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert len(exported) == count and len(list((tmp_path / "cache").glob("*.onnx"))) == num_files

    model = load(source)
    check(model, "", 1, 1)
    check(model, "", 1, 1)
    with torch.no_grad():
        model.get_parameter("conv.bias").add_(1)
    check(model, "", 2, 2)
    check(model, "conv", 3, 3)
    model = load(source.replace("sigmoid", "tanh"))
    check(model, "", 4, 4)
    # A file that does not fit the model is noticed by its results, whatever its name says.
    first, *_, last = sorted((tmp_path / "cache").glob("*.onnx"), key=lambda path: path.stat().st_mtime_ns)
    last.write_bytes(first.read_bytes())
    check(model, "", 5, 4)
    last.write_bytes(b"cut off")
    check(model, "", 6, 4)
    check(model, "", 6, 4)


def test_few_exported_models_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        onnx_runtime._keep(tmp_path / f"{number}.onnx", b"")
        onnx_runtime.os.utime(tmp_path / f"{number}.onnx", (number, number))
    assert {path.stem for path in tmp_path.iterdir()} == {str(number) for number in range(3, KEPT + 3)}
    (tmp_path / "file").write_text("")
    onnx_runtime._keep(tmp_path / "file/below.onnx", b"")  # no folder can be made there: nothing is kept


def test_the_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rarefish/onnx"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/rarefish/onnx"


def test_without_the_packages_torch_runs_and_the_command_that_installs_them_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_runtime, "PACKAGES", ("no_such_package",))
    backbone = OnnxBackbone(small(), "tokens", noise(2))
    assert backbone.backend == "torch" and backbone.note.endswith("pip install 'rarefish[onnx]'.")
    assert backbone(noise(3)).shape == (3, 8)
    with pytest.raises(
        ArgumentError, match=r"needs additional packages \(no_such_package\): pip install 'rarefish\[onnx\]'"
    ):
        OnnxBackbone(small(), "tokens", noise(2), backend="onnx")


class Convolution(nn.Module):
    """A model that is exported quickly."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.conv(images).sigmoid().mean(dim=(2, 3)))


class Branching(Convolution):
    """Its code depends on the values of the images, which cannot be exported."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images if float(images.sum()) > 0 else -images)


class Restless(Convolution):
    """Gives other features on every call."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + torch.randn_like(images))


@needs_onnx
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Branching(), "Could not guard on data-dependent expression"),
        (Restless(), "its features differ from torch's by"),
        (Convolution().double(), "it has the type torch.float64 on cpu, not float32 on the CPU"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_torch_takes_over_where_onnx_runtime_cannot(model: nn.Module, why: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"ONNX Runtime cannot run the model, so torch does: {why}"):
        backbone = OnnxBackbone(model, "conv", noise(2), folder=tmp_path)
    assert backbone.backend == "torch" and why in backbone.note and not list(tmp_path.iterdir())
    assert backbone(noise(3)).shape == (3, 8) and backbone(noise(3)).dtype == torch.float32
    with pytest.raises(ModelError, match=f"ONNX Runtime cannot run the model: {why}.*Use backend='torch'"):
        OnnxBackbone(model, "conv", noise(2), backend="onnx", folder=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OnnxBackbone(model, "conv", noise(2), backend="torch")


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ArgumentError, match="There is no backend 'onx'. Did you mean onnx"):
        OnnxBackbone(small(), "tokens", noise(2), backend="onx")
    with pytest.raises(LayerError, match="The model has no layer 'token'. Did you mean tokens"):
        OnnxBackbone(small(), "token", noise(2))
    with pytest.raises(LayerError, match=r"The layer 'unused' did not run"):
        OnnxBackbone(small(), "unused", noise(2))
    with pytest.raises(ModelError, match=r"returns a tensor of shape \(2, 8, 7, 7\) for 2 images"):
        OnnxBackbone(nn.Conv2d(3, 8, 3, stride=2), "", noise(2))
    backbone = OnnxBackbone(small(), "tokens", noise(2), backend="torch")
    with pytest.raises(DataError, match="The images have 3×8×8, but the model was prepared for 3×16×16"):
        backbone(noise(2, size=8))
