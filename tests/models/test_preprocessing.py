"""What each kind of model is shown, and what a person may say instead."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from rarefish.errors import ArgumentError, ModelError
from rarefish.models.loading import load_model
from rarefish.models.networks import MODELS
from rarefish.models.preprocessing import MEAN, STD, Input, channels_of, check_outputs, input_of
from tests.models.test_loading import KIND, needs


@pytest.mark.parametrize("name", MODELS)
def test_our_own_networks_can_see_what_they_are_shown(name: str) -> None:
    model = load_model(name, 4, channels_of(name))
    wanted = input_of(name, model)
    check_outputs(model, wanted, 4)
    assert wanted == (Input((28, 28), "L", (0.0,), (1.0,)) if name == "lenet" else Input((224, 224), "RGB", MEAN, STD))


def test_what_is_said_goes_before_what_is_known() -> None:
    net = nn.Identity()
    assert input_of("net.py:make", net) == Input((224, 224), "RGB", MEAN, STD)
    told = input_of("net.py:make", net, (32, 48), "L", (0.1,), (0.2,))
    assert told == Input((32, 48), "L", (0.1,), (0.2,)) and told.channels == 1
    grey = input_of("net.py:make", net, mode="L")
    assert grey.mean == (pytest.approx(sum(MEAN) / 3),) and len(grey.std) == 1
    assert input_of("lenet", net, mode="RGB") == Input((28, 28), "RGB", (0.0,) * 3, (1.0,) * 3)
    assert channels_of("lenet") == 1 and channels_of("lenet", "RGB") == 3 and channels_of("timm:resnet18") == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "CMYK"}, "RGB or L, not 'CMYK'"),
        ({"size": (0, 5)}, "a height and a width of at least 1"),
        ({"mean": (0.5,)}, "RGB need 3 numbers for mean, not 1"),
        ({"std": (1.0, 0.0, 1.0)}, "greater than 0"),
    ],
)
def test_what_cannot_be_shown(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        input_of("net.py:make", nn.Identity(), **settings)


def test_timm() -> None:
    needs("timm")
    model = load_model("timm:test_resnet.r160_in1k", 5, 3)
    wanted = input_of("timm:test_resnet.r160_in1k", model)
    assert wanted == Input((160, 160), "RGB", (0.5,) * 3, (0.5,) * 3)
    check_outputs(model, wanted, 5)


def test_a_model_that_says_what_timm_models_say() -> None:
    model = nn.Identity()
    model.default_cfg = {"input_size": (3, 64, 96), "mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}  # pyright: ignore
    assert input_of("timm:some", model) == Input((64, 96), "RGB", (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    assert input_of("timm:other", nn.Identity()) == Input()


def test_torchvision_real() -> None:
    needs("torchvision")
    assert input_of("torchvision:inception_v3", nn.Identity()).size == (299, 299)
    assert input_of("torchvision:resnet18", nn.Identity()) == Input()


def test_torchvision_by_its_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = SimpleNamespace(crop_size=[300], mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: preset))
    fake: Any = ModuleType("torchvision")
    fake.models = SimpleNamespace(get_model_weights=lambda name: weights)
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    model: Any = nn.Identity()
    assert input_of("torchvision:efficientnet_b3", model) == Input((300, 300), "RGB", (0.5,) * 3, (0.25,) * 3)
    model.image_size = 224
    assert input_of("torchvision:vit_h_14", model).size == (224, 224)


def test_transformers(tmp_path: Path) -> None:
    transformers = needs("transformers")
    config = transformers.ViTConfig(num_labels=4, intermediate_size=8, **KIND)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    address = f"transformers:{tmp_path}"
    model = load_model(address, 4, 3)
    assert input_of(address, model) == Input((32, 32), "RGB", MEAN, STD)
    check_outputs(model, input_of(address, model), 4)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    assert input_of(address, model) == Input((32, 32), "RGB", (0.5,) * 3, (0.5,) * 3)


def test_what_a_folder_says_of_its_images(tmp_path: Path) -> None:
    path, model = tmp_path / "preprocessor_config.json", nn.Identity()
    path.write_text('{"size": {"height": 48, "width": 64}}')
    assert input_of(f"transformers:{tmp_path}", model).size == (48, 64)
    path.write_text('{"size": {"shortest_edge": 96}}')
    assert input_of(f"transformers:{tmp_path}", model).size == (96, 96)
    model.config = SimpleNamespace(image_size=[30, 40], num_channels=1)  # pyright: ignore
    grey = input_of(f"transformers:{tmp_path}", model)
    assert grey.size == (30, 40) and grey.mode == "L"
    path.write_text("{")
    with pytest.raises(ModelError, match="preprocessor_config.json is damaged"):
        input_of(f"transformers:{tmp_path}", model)


def test_a_model_of_other_images_or_classes_is_named_before_the_work() -> None:
    model = load_model("lenet", 10, 1)
    with pytest.raises(ModelError, match="has 10 outputs, but there are 3 classes. Give its last layer 3 outputs"):
        check_outputs(model, input_of("lenet", model), 3)
    with pytest.raises(ModelError, match="fails on images of 224×224 pixels in mode RGB"):
        check_outputs(model, Input(), 10)
    assert model.training
