"""Load a model by its address, with weights from a file. Weights never run code, and nothing is downloaded."""

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.errors import ArgumentError, ModelError, list_some, nearest
from rarefish.models.efficientnet_lite import NAME, pretrained_backbone, random_backbone
from rarefish.models.networks import MODELS, build_model

__path__: list[str] = []
"""Makes Python treat this module as a package whose submodules are users' files, found by `FilesByName`."""


class FilesByName(MetaPathFinder):
    """Finds a user's file by its module name, which encodes the path.

    This way, another process can import the same classes, and a file named types.py does not shadow Python's module.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = re.fullmatch(rf"{re.escape(__name__)}\.\w*_x((?:[0-9a-f]{{2}})+)", fullname)
        return importlib.util.spec_from_file_location(fullname, os.fsdecode(bytes.fromhex(found[1]))) if found else None


sys.meta_path.append(FilesByName())


def module_name(place: str) -> str:
    """Returns the module name under which the file is loaded."""
    return f"{__name__}.{re.sub(r'[^0-9a-zA-Z]', '_', Path(place).stem)}_x{os.fsencode(place).hex()}"


def _load(place: str) -> ModuleType:
    """Loads the file as a module, and runs it again if it was loaded before."""
    name = module_name(place)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def call_function(function: Callable[..., Any], address: str, num_classes: int) -> Any:
    """Calls the user's function; turns an error inside it into a ModelError with file and line."""
    try:
        arguments = {"num_classes": num_classes} if "num_classes" in inspect.signature(function).parameters else {}
        return function(**arguments)
    except Exception as error:
        raise ModelError(f"{address} failed: {type(error).__name__}: {error} ({_place(error)}).") from error


def _place(error: BaseException) -> str:
    """Returns the file and line where the error was raised."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else "unknown location"


def find_function(address: str, ways: str) -> Any:
    """Returns the function at FILE.py:FUNCTION or module:function; `ways` names other kinds of address in errors."""
    place, _, name = address.rpartition(":")
    try:
        module = _load(place) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, FileNotFoundError, ValueError) as error:
        raise ArgumentError(
            f"Cannot find {place!r}: {error}. A model is FILE.py:FUNCTION, module:function, {ways}."
        ) from error
    except Exception as error:  # raised by the user's code, or because the file is not Python
        where = f"line {error.lineno}" if isinstance(error, SyntaxError) else _place(error)
        raise ModelError(f"{place} cannot be loaded: {type(error).__name__}: {error} ({where}).") from error
    known = [key for key, value in vars(module).items() if callable(value)]
    if name not in known:
        raise ArgumentError(f"{place} has no function {name!r}. {nearest(name, known)}")
    return getattr(module, name)


WRAPPINGS = ("best", "state_dict", "model_state_dict", "model")
"""Keys under which training programs store the weights in a checkpoint; `best` is our own."""
PREFIXES = ("", "module.", "_orig_mod.", "model.")
"""Prefixes that DataParallel, torch.compile and wrappers like `LogitsOnly` add to every name."""


class LogitsOnly(nn.Module):
    """Wraps a network whose output contains the logits, and returns only the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = getattr(model, "config", None)

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(images)
        return output if isinstance(output, Tensor) else output.logits


def load_model(
    address: str, num_classes: int, channels: int, weights: Path | None = None, *, new_classifier: bool = False
) -> nn.Module:
    """Returns the model at an address: built in, from timm, torchvision or transformers, or made by a function.

    Args:
        address: The name of a built-in network, timm:NAME, torchvision:NAME, transformers:KIND_OR_FOLDER,
            FILE.py:FUNCTION or module:function. The function may have a parameter `num_classes`. The network
            efficientnet-lite0 has ImageNet weights unless `weights` is given.
        num_classes: Number of outputs.
        channels: Number of channels of the images.
        weights: A .safetensors or .pt file.
        new_classifier: If the weights have no classifier, or one of a different width, keep a randomly initialized
            classifier for training instead of raising an error.
    """
    family, _, name = address.partition(":")
    with torch.random.fork_rng(devices=[]):  # same initial weights each time; leaves the global generator unchanged
        torch.manual_seed(0)
        if family in FAMILIES:
            model = FAMILIES[family](name, num_classes, channels, new_classifier)
        elif is_own_code(address):
            model = call_function(find_function(address, WAYS), address, num_classes)
        elif address == NAME:
            make = pretrained_backbone if weights is None else random_backbone
            model = make(num_classes, channels, torch.Generator().manual_seed(0))
        else:
            if address not in MODELS:
                raise ArgumentError(f"There is no model {address!r}. {nearest(address, BUILT_IN)}")
            model = build_model(address, num_classes, channels, torch.Generator().manual_seed(0))
    if not isinstance(model, nn.Module):
        raise ModelError(f"{address} returns a {type(model).__name__}, not an nn.Module.")
    if weights is not None:
        load_weights(model.model if isinstance(model, LogitsOnly) else model, weights, new_classifier=new_classifier)
    return model


def is_own_code(address: str) -> bool:
    """Returns whether the address names a user's Python function, FILE.py:FUNCTION or module:function."""
    family, colon, _ = address.partition(":")
    return bool(colon) and family not in FAMILIES


def has_weights(address: str) -> bool:
    """Returns whether the model at this address has pretrained weights without a weights file."""
    family, _, name = address.partition(":")
    if family != "transformers":
        return address == NAME
    folder = Path(name).expanduser()
    return any(True for pattern in SAVED for _ in folder.glob(pattern))


SAVED = ("*.safetensors", "pytorch_model*.bin")
"""Names of the files in which transformers saves weights."""


def build_timm(name: str, num_classes: int, channels: int, _: bool) -> nn.Module:
    timm = import_package("timm")
    if not timm.is_model(name):  # this includes names that timm would download
        raise ArgumentError(f"timm has no model {name!r}. {nearest(name, timm.list_models())}")
    try:
        return timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=channels)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"timm cannot create {name!r} for {channels} channels: {_first_line(error)}.") from error


def build_torchvision(name: str, num_classes: int, channels: int, _: bool) -> nn.Module:
    models = import_package("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise ArgumentError(f"torchvision has no model {name!r}. {nearest(name, known)}")
    if channels != 3:
        raise ArgumentError(f"torchvision:{name} needs images with 3 channels, not {channels}. Use mode RGB.")
    if name in ("googlenet", "inception_v3"):  # in training mode they return more than the logits
        return LogitsOnly(models.get_model(name, weights=None, num_classes=num_classes, init_weights=True))
    return models.get_model(name, weights=None, num_classes=num_classes)


def build_transformers(name: str, num_classes: int, channels: int, new_classifier: bool) -> nn.Module:
    """Returns a model of the given kind (vit, convnext …) with random weights, or one saved with `save_pretrained`."""
    transformers = import_package("transformers")
    kinds = import_package("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    folder, auto = Path(name).expanduser(), transformers.AutoModelForImageClassification
    options = {"local_files_only": True, "trust_remote_code": False}
    if not (folder / "config.json").is_file():
        if name not in kinds:
            raise ArgumentError(
                f"{name!r} is neither a folder with a config.json nor a kind of image classifier. "
                f"{nearest(name, kinds)} Nothing is downloaded. Download a model yourself and give its folder."
            )
        config = transformers.AutoConfig.for_model(name, num_labels=num_classes, num_channels=channels)
        return LogitsOnly(auto.from_config(config))
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), **options)
        if config.num_labels != num_classes and not new_classifier:
            raise ModelError(_other_width(folder, config.num_labels, num_classes))
        config.num_labels = num_classes
        if not has_weights(f"transformers:{name}"):
            return LogitsOnly(auto.from_config(config))
        model, report = auto.from_pretrained(
            str(folder), config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
        )
    except ModelError:
        raise
    except Exception as error:  # a folder can be damaged in many ways
        raise ModelError(f"{folder} does not contain an image classifier: {_first_line(error)}.") from error
    other = {entry[0] for entry in report["mismatched_keys"]} | set(report["missing_keys"])
    if other and not new_classifier:
        raise ModelError(
            f"{folder} is a different network. Missing or of another shape: {list_some(sorted(other), 3)}."
        )
    return LogitsOnly(model.float())


FAMILIES: dict[str, Callable[[str, int, int, bool], nn.Module]] = {
    "timm": build_timm,
    "torchvision": build_torchvision,
    "transformers": build_transformers,
}
"""Functions (name, number of classes, channels, whether to replace a classifier of another width) -> network."""
BUILT_IN = (NAME, *MODELS)
WAYS = ", ".join((*(f"{family}:NAME" for family in FAMILIES), *BUILT_IN))


def import_package(name: str) -> Any:
    """Imports an optional package; raises ArgumentError if it is missing or broken."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ArgumentError(f"{package} models need an additional package: pip install {package}.") from error
        raise ArgumentError(f"{package} cannot be imported: {_first_line(error)}.") from error
    except Exception as error:  # a build for another version of torch can raise any exception
        raise ArgumentError(
            f"{package} is installed but cannot be imported: {_first_line(error)}. Install the version for "
            f"torch {torch.__version__}."
        ) from error


def load_weights(model: nn.Module, path: Path, *, new_classifier: bool = False) -> None:
    """Loads weights into the model from a .safetensors file, or from a .pt file that contains only tensors."""
    own, found = model.state_dict(), named_as(model.state_dict(), read_weights(path))
    other = {name for name in own.keys() & found.keys() if own[name].shape != found[name].shape}
    widths = {(len(found[name]), len(own[name])) for name in other if own[name].ndim and found[name].ndim}
    is_classifier = len(widths) == 1 and all(own[name].shape[1:] == found[name].shape[1:] for name in other)
    if new_classifier and is_classifier:
        found, other = {**found, **{name: own[name] for name in other}}, set()
    if new_classifier and own.keys() - found.keys() == _classifier_tensors(model):
        found = own | found
    differences = (
        ("missing", own.keys() - found.keys()),
        ("not in the model", found.keys() - own.keys()),
        ("of another shape", other),
    )
    found_differences = "; ".join(f"{what}: {list_some(sorted(names), 3)}" for what, names in differences if names)
    if found_differences:
        width = f" {_other_width(path, *widths.pop())}" if is_classifier else ""
        raise ModelError(f"{path} belongs to a different network. {found_differences}.{width}")
    model.load_state_dict(found)


def _classifier_tensors(model: nn.Module) -> set[str]:
    """Returns the names of the tensors in the last linear layer."""
    linear = [(name, module) for name, module in model.named_modules() if name and isinstance(module, nn.Linear)]
    return {f"{name}.{key}" for name, module in linear[-1:] for key in module.state_dict()}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Returns tensors by name; rejects a file that contains anything else, such as code, before any of it runs."""
    if not path.is_file():
        raise ArgumentError(f"The weights file {path} does not exist.")
    found: Any = _read_safetensors(path) if path.suffix == ".safetensors" else _read_tensors(path)
    for wrapping in WRAPPINGS:
        if isinstance(found, dict) and isinstance(found.get(wrapping), dict):
            found = found[wrapping]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"{path} does not contain named weights. Save model.state_dict().")
    return found


def named_as(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors without the prefix that keeps their names from matching those of the model."""

    def without(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in found.items()}

    return max(map(without, PREFIXES), key=lambda named: len(named.keys() & own.keys()))


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    if not importlib.util.find_spec("safetensors"):
        raise ArgumentError(f"{path} needs an additional package: pip install safetensors.")
    from safetensors import SafetensorError  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged: {_first_line(error)}. Save or download it again.") from error


def _read_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        beside = f" It refers to {wanted[1]}." if wanted else ""
        raise ModelError(
            f"{path} contains more than weights. The rest could run as a program, so the file was not loaded.{beside} "
            "Save model.state_dict()."
        ) from error
    except Exception as error:
        raise ModelError(
            f"{path} contains more than weights or is damaged: {_first_line(error)}. Save model.state_dict()."
        ) from error


def _other_width(path: Path, theirs: int, ours: int) -> str:
    return (
        f"The classifier in {path.name} has {theirs} classes, but there are {ours}. Give weights trained on these "
        "classes, or train with a new classifier."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
