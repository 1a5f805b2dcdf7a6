"""Models from anywhere, by their address; weights that are weights, and files that pretend to be."""

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rarefish.errors import ArgumentError, ModelError
from rarefish.models.loading import LogitsOnly, load_model, load_weights, read_weights
from rarefish.models.networks import build_model
from tests import forked_processes

KIND = {"image_size": 32, "patch_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def needs(package: str) -> Any:
    try:
        return __import__(package)
    except Exception as error:  # a build for another torch raises what it likes
        pytest.skip(f"{package} cannot be imported: {error}")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def small(num_classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, num_classes))


def test_our_own_networks() -> None:
    before = torch.get_rng_state()
    assert load_model("lenet", 7, 1)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    assert same(load_model("lenet", 7, 1), load_model("lenet", 7, 1))
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ArgumentError, match="There is no model 'lennet'. Did you mean lenet"):
        load_model("lennet", 7, 1)


def test_timm() -> None:
    needs("timm")
    before = torch.get_rng_state()
    model = load_model("timm:test_resnet.r160_in1k", 5, 1).eval()
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 5)
    assert same(model, load_model("timm:test_resnet.r160_in1k", 5, 1))
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ArgumentError, match="timm has no model 'resnet19'. Did you mean .*resnet18"):
        load_model("timm:resnet19", 5, 3)
    with pytest.raises(ArgumentError, match="timm has no model 'hf_hub:some/net'"):
        load_model("timm:hf_hub:some/net", 5, 3)
    with pytest.raises(ArgumentError, match="timm cannot create 'resnet18.nobodys'"):
        load_model("timm:resnet18.nobodys", 5, 3)


def test_torchvision() -> None:
    needs("torchvision")
    assert load_model("torchvision:resnet18", 5, 3).eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    # It gives three tensors while it is trained.
    assert load_model("torchvision:googlenet", 5, 3).train()(torch.zeros(2, 3, 224, 224)).shape == (2, 5)
    with pytest.raises(ArgumentError, match="torchvision has no model 'resnet_18'. Did you mean resnet18"):
        load_model("torchvision:resnet_18", 5, 3)


def test_torchvision_is_asked_for_a_network_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def get_model(name: str, **settings: Any) -> nn.Module:
        asked.append((name, settings))
        return small(settings["num_classes"])

    fake: Any = ModuleType("torchvision")
    fake.models = SimpleNamespace(list_models=lambda module: ["resnet18", "vgg11"], get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    assert load_model("torchvision:vgg11", 6, 3)(torch.zeros(1, 4)).shape == (1, 6)
    assert asked == [("vgg11", {"weights": None, "num_classes": 6})]
    with pytest.raises(ArgumentError, match="no model 'vgg12'. Did you mean vgg11"):
        load_model("torchvision:vgg12", 6, 3)
    with pytest.raises(ArgumentError, match="needs images with 3 channels, not 1. Use mode RGB"):
        load_model("torchvision:vgg11", 6, 1)


def test_transformers(tmp_path: Path) -> None:
    transformers = needs("transformers")
    made = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=4, intermediate_size=8, **KIND))
    made.save_pretrained(tmp_path / "vit")
    model = load_model(f"transformers:{tmp_path / 'vit'}", 4, 3).eval()
    images = torch.rand(2, 3, 32, 32)
    assert isinstance(model, LogitsOnly) and torch.equal(model(images), made.eval()(images).logits)
    with pytest.raises(ModelError, match="classifier in vit has 4 classes, but there are 6"):
        load_model(f"transformers:{tmp_path / 'vit'}", 6, 3)
    wider = load_model(f"transformers:{tmp_path / 'vit'}", 6, 3, new_classifier=True).eval()
    assert wider(images).shape == (2, 6)
    names = [name for name in made.state_dict() if not name.startswith("classifier")]
    assert all(torch.equal(wider.state_dict()[f"model.{name}"], made.state_dict()[name]) for name in names)
    # Weights of the wrapped model, and of the one inside, are both found.
    for name, part in (("wrapped.pt", model), ("inside.pt", made)):
        torch.save(part.state_dict(), tmp_path / name)
        (tmp_path / "bare").mkdir(exist_ok=True)
        made.config.save_pretrained(tmp_path / "bare")
        assert same(load_model(f"transformers:{tmp_path / 'bare'}", 4, 3, tmp_path / name), model)


def test_a_damaged_or_malicious_folder_of_transformers(tmp_path: Path) -> None:
    transformers = needs("transformers")
    config = transformers.ViTConfig(num_labels=4, intermediate_size=8, **KIND)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ModelError, match="does not contain an image classifier"):
        load_model(f"transformers:{tmp_path}", 4, 3)
    weights.unlink()
    torch.save({"classifier.weight": Malice(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="does not contain an image classifier"):
        load_model(f"transformers:{tmp_path}", 4, 3)
    assert not (tmp_path / "ran").exists()
    config.auto_map = {"AutoModelForImageClassification": "code.Net"}
    config.model_type = "made_up"
    config.save_pretrained(tmp_path)
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="does not contain an image classifier"):
        load_model(f"transformers:{tmp_path}", 4, 3)
    assert not (tmp_path / "ran").exists()


def test_kinds_of_transformers() -> None:
    needs("transformers")
    assert load_model("transformers:mobilenet_v1", 3, 3).eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    with pytest.raises(ArgumentError, match="Did you mean .*vit.*Nothing is downloaded"):
        load_model("transformers:vitt", 3, 3)
    with pytest.raises(ArgumentError, match="Nothing is downloaded. Download a model yourself and give its folder"):
        load_model("transformers:google/vit-base-patch16-224", 3, 3)


@pytest.mark.parametrize("package", ["timm", "torchvision", "transformers"])
def test_a_package_that_is_missing(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArgumentError, match=f"{package} models need an additional package: pip install {package}."):
        load_model(f"{package}:resnet18", 2, 3)


def test_a_package_that_is_of_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(ArgumentError, match="cannot be imported: operator .* Install the version for torch 2"):
        load_model("torchvision:resnet18", 2, 3)


def test_no_package_is_imported_before_it_is_asked_for() -> None:
    asked = (
        "import sys; from rarefish.models.loading import load_model; load_model('lenet', 2, 1); "
        "sys.exit(any(name in sys.modules for name in ('timm', 'torchvision', 'transformers', 'safetensors')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    assert subprocess.run([sys.executable, "-c", asked], env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {}},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    ],
)
def test_weights_as_programs_save_them(tmp_path: Path, wrap: Any) -> None:
    trained, fresh = small(), small()
    torch.save(wrap(trained.state_dict()), tmp_path / "net.pt")
    load_weights(fresh, tmp_path / "net.pt")
    assert same(trained, fresh)


def test_safetensors(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file
    trained = build_model("lenet", 3, 1, torch.Generator().manual_seed(7))
    path = tmp_path / "net.safetensors"
    save_file({name: value.contiguous() for name, value in trained.state_dict().items()}, path)
    assert same(load_model("lenet", 3, 1, path), trained)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ModelError, match="net.safetensors is damaged"):
        load_model("lenet", 3, 1, path)


class Malice:
    """Runs a program when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


def test_a_file_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    torch.save({"fc.weight": torch.zeros(1), "more": Malice(trace)}, tmp_path / "new.pt")
    torch.save({"more": Malice(trace)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Malice(trace), protocol=2))
    for name in ("new.pt", "old.pt", "bare.pt"):
        with pytest.raises(ModelError, match=f"{name} contains more than weights.*program, so the file was not loaded"):
            read_weights(tmp_path / name)
    with pytest.raises(ModelError, match=r"It refers to posix.mkdir. Save model.state_dict\(\)"):
        read_weights(tmp_path / "new.pt")
    assert not trace.exists()
    pickle.loads((tmp_path / "bare.pt").read_bytes())
    assert trace.exists(), "the malice works where it is let"


def test_weights_of_another_network_say_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save(build_model("resnet10", 3, 3, torch.Generator()).state_dict(), path)
    with pytest.raises(ModelError, match=r"net.pt belongs to a different network. missing: layer1.1.*"):
        load_model("resnet18", 3, 3, path)
    torch.save({**small().state_dict(), "4.weight": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match="not in the model: 4.weight"):
        load_weights(small(), path)
    torch.save(nn.Sequential(nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 3)).state_dict(), path)
    with pytest.raises(ModelError, match="of another shape: 0.weight.$"):
        load_weights(small(), path, new_classifier=True)


def test_a_classifier_of_another_width(tmp_path: Path) -> None:
    torch.save(small(10).state_dict(), tmp_path / "net.pt")
    with pytest.raises(ModelError, match="2.bias, 2.weight. The classifier in net.pt has 10 classes, but there are 3"):
        load_weights(small(3), tmp_path / "net.pt")
    model, first = small(3), read_weights(tmp_path / "net.pt")["0.weight"]
    drawn = model.state_dict()["2.weight"].clone()
    load_weights(model, tmp_path / "net.pt", new_classifier=True)
    assert torch.equal(model.state_dict()["0.weight"], first) and torch.equal(model.state_dict()["2.weight"], drawn)


def test_weights_without_a_classifier(tmp_path: Path) -> None:
    """As those of a backbone that was trained without labels."""
    below = {name: value for name, value in small(7).state_dict().items() if not name.startswith("2.")}
    torch.save(below, tmp_path / "net.pt")
    with pytest.raises(ModelError, match=r"net.pt belongs to a different network. missing: 2.bias, 2.weight.$"):
        load_weights(small(), tmp_path / "net.pt")
    model = small()
    drawn = model.state_dict()["2.weight"].clone()
    load_weights(model, tmp_path / "net.pt", new_classifier=True)
    assert torch.equal(model.state_dict()["0.weight"], below["0.weight"])
    assert torch.equal(model.state_dict()["2.weight"], drawn)
    torch.save({"0.weight": below["0.weight"]}, tmp_path / "less.pt")
    with pytest.raises(
        ModelError, match=r"less.pt belongs to a different network. missing: 0.bias, 2.bias, 2.weight.$"
    ):
        load_weights(model, tmp_path / "less.pt", new_classifier=True)


def test_backbones_of_transformers_without_a_classifier(tmp_path: Path) -> None:
    """The recipes for DINOv2 and CLIP: the folder holds a model without a classifier, of CLIP also one for text."""
    transformers = needs("transformers")
    dino = transformers.Dinov2Model(transformers.Dinov2Config(**KIND))
    dino.save_pretrained(tmp_path / "dino")
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
    clip = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=KIND | text, projection_dim=6)
    )
    clip.save_pretrained(tmp_path / "clip")
    for name, own, part in (("dino", dino, "model.dinov2."), ("clip", clip, "model.")):
        model = load_model(f"transformers:{tmp_path / name}", 4, 3, new_classifier=True).eval()
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 4)
        loaded, saved = model.state_dict(), own.state_dict()
        shared = [key for key in saved if f"{part}{key}" in loaded]
        assert len(shared) > 10 and all(torch.equal(loaded[f"{part}{key}"], saved[key]) for key in shared)
        with pytest.raises(ModelError, match="classifier"):
            load_model(f"transformers:{tmp_path / name}", 4, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "The weights file .*net.pt does not exist"),
        (b"", "net.pt contains more than weights"),
        (b"PK\x03\x04 nothing", "net.pt contains more than weights"),
    ],
)
def test_files_that_are_no_weights(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "net.pt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises((ArgumentError, ModelError), match=message):
        load_weights(small(), path)


def test_files_that_hold_other_things(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save([1, 2], path)
    with pytest.raises(ModelError, match="does not contain named weights"):
        load_weights(small(), path)
    torch.save(small().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelError, match="contains more than weights or is damaged"):
        load_weights(small(), path)


NAMED_AS_PYTHONS_OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.top = nn.Linear(4, num_classes)

    def forward(self, images):
        return self.top(images)

def make(num_classes):
    return Net(num_classes)
"""


@pytest.mark.parametrize("name", ["types", "queue", "random", "my net-1.5"])
def test_a_file_called_as_a_module_of_python_does_not_take_its_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(NAMED_AS_PYTHONS_OWN)
    before = sys.modules.get(name)
    model = load_model(f"{path}:make", 3, 1)
    assert sys.modules.get(name) is before and sys.modules[type(model).__module__] is not before
    # A process that was told nothing else finds the class by its name.
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    script = "import pickle, sys; print(type(pickle.load(open(sys.argv[1], 'rb'))).__name__)"
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "model.pkl")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    start = subprocess.run if name == "types" else forked_processes.run  # one of them a fresh interpreter
    done = start(command, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == "Net\n", done.stderr
    path.write_text(NAMED_AS_PYTHONS_OWN.replace("4, num", "5 , num"))
    assert load_model(f"{path}:make", 3, 1)(torch.zeros(1, 5)).shape == (1, 3)  # read anew


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')")
    before = set(sys.modules)
    with pytest.raises(ModelError, match=r"broken.py cannot be loaded: RuntimeError: no \(broken.py, line 1\)"):
        load_model(f"{tmp_path / 'broken.py'}:make", 3, 1)
    assert not {name for name in set(sys.modules) - before if "broken" in name}
