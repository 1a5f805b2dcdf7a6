"""Load a model by its address, with weights from a file; weights never run code, and nothing is downloaded."""

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
from rarefish.models.networks import MODELS, build_model

__path__: list[str] = []
"""Makes Python treat this module as a package: users' files become its submodules, found by `FilesByName`."""


class FilesByName(MetaPathFinder):
    """Finds a user's file by its module name, which encodes the path.

    So another process can import the same classes, and a file named types.py does not shadow Python's own.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = re.fullmatch(rf"{re.escape(__name__)}\.\w*_x((?:[0-9a-f]{{2}})+)", fullname)
        return importlib.util.spec_from_file_location(fullname, os.fsdecode(bytes.fromhex(found[1]))) if found else None


sys.meta_path.append(FilesByName())


def module_name(place: str) -> str:
    """Return the name of the module as which the file is loaded."""
    return f"{__name__}.{re.sub(r'[^0-9a-zA-Z]', '_', Path(place).stem)}_x{os.fsencode(place).hex()}"


def _load(place: str) -> ModuleType:
    """Load the file as a module, running it again if it was loaded before."""
    name = module_name(place)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def call_function(function: Callable[..., Any], address: str, num_classes: int) -> Any:
    """Call the user's function; an error inside it becomes a ModelError with file and line."""
    try:
        arguments = {"num_classes": num_classes} if "num_classes" in inspect.signature(function).parameters else {}
        return function(**arguments)
    except Exception as error:
        raise ModelError(f"{address} failed: {type(error).__name__}: {error} ({_place(error)}).") from error


def _place(error: BaseException) -> str:
    """Return file and line where the error was raised."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else "unknown location"


def find_function(address: str, ways: str) -> Any:
    """Return the function at FILE.py:FUNCTION or module:function; `ways` names other kinds of address in errors."""
    place, _, name = address.rpartition(":")
    try:
        module = _load(place) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, FileNotFoundError, ValueError) as error:
        raise ArgumentError(
            f"There is no {place!r}: {error}. A model is FILE.py:FUNCTION, module:function, {ways}."
        ) from error
    except Exception as error:  # raised by the user's code, or because the file is not Python
        where = f"line {error.lineno}" if isinstance(error, SyntaxError) else _place(error)
        raise ModelError(f"{place} cannot be loaded: {type(error).__name__}: {error} ({where}).") from error
    known = [key for key, value in vars(module).items() if callable(value)]
    if name not in known:
        raise ArgumentError(f"{place} has no function {name!r}. {nearest(name, known)}")
    return getattr(module, name)


WRAPPINGS = ("best", "state_dict", "model_state_dict", "model")
"""Keys under which training programs store the weights in a checkpoint; `best` is ours."""
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
    """Return the model at an address: a built-in network, one of timm, torchvision or transformers, or a function's.

    Args:
        address: The name of a built-in network, timm:NAME, torchvision:NAME, transformers:KIND_OR_FOLDER,
            FILE.py:FUNCTION or module:function. The function may have a parameter `num_classes`.
        num_classes: Number of outputs.
        channels: Number of channels of an image.
        weights: A .safetensors or .pt file.
        new_classifier: If the classifier in the weights has another width, keep a randomly initialized one, to be
            trained, instead of raising an error.
    """
    family, _, name = address.partition(":")
    with torch.random.fork_rng(devices=[]):  # the same initial weights each time, and the global generator unchanged
        torch.manual_seed(0)
        if family in FAMILIES:
            model = FAMILIES[family](name, num_classes, channels, new_classifier)
        elif is_own_code(address):
            model = call_function(find_function(address, WAYS), address, num_classes)
        else:
            model = build_model(address, num_classes, channels, torch.Generator().manual_seed(0))
    if not isinstance(model, nn.Module):
        raise ModelError(f"{address} returns a {type(model).__name__}, not an nn.Module.")
    if weights is not None:
        load_weights(model.model if isinstance(model, LogitsOnly) else model, weights, new_classifier=new_classifier)
    return model


def is_own_code(address: str) -> bool:
    """Return whether the address names a user's Python function, FILE.py:FUNCTION or module:function."""
    family, colon, _ = address.partition(":")
    return bool(colon) and family not in FAMILIES


def build_timm(name: str, num_classes: int, channels: int, _: bool) -> nn.Module:
    timm = import_package("timm")
    if not timm.is_model(name):  # this includes names that timm would download
        raise ArgumentError(f"timm has no model {name!r}. {nearest(name, timm.list_models())}")
    try:
        return timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=channels)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"timm cannot make {name!r} for {channels} channels: {_first_line(error)}.") from error


def build_torchvision(name: str, num_classes: int, channels: int, _: bool) -> nn.Module:
    models = import_package("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise ArgumentError(f"torchvision has no model {name!r}. {nearest(name, known)}")
    if channels != 3:
        raise ArgumentError(f"torchvision:{name} needs images of 3 channels, not {channels}. Use mode RGB.")
    if name in ("googlenet", "inception_v3"):  # in training mode they return more than the logits
        return LogitsOnly(models.get_model(name, weights=None, num_classes=num_classes, init_weights=True))
    return models.get_model(name, weights=None, num_classes=num_classes)


def build_transformers(name: str, num_classes: int, channels: int, new_classifier: bool) -> nn.Module:
    """Return a model of a kind (vit, convnext …) with random weights, or one saved with `save_pretrained`."""
    transformers = import_package("transformers")
    kinds = import_package("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    folder, auto = Path(name).expanduser(), transformers.AutoModelForImageClassification
    options = {"local_files_only": True, "trust_remote_code": False}
    if not (folder / "config.json").is_file():
        if name not in kinds:
            raise ArgumentError(
                f"{name!r} is no folder with a config.json and no kind of image classifier. {nearest(name, kinds)} "
                "Nothing is downloaded: fetch a model yourself and give its folder."
            )
        config = transformers.AutoConfig.for_model(name, num_labels=num_classes, num_channels=channels)
        return LogitsOnly(auto.from_config(config))
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), **options)
        if config.num_labels != num_classes and not new_classifier:
            raise ModelError(_other_width(folder, config.num_labels, num_classes))
        config.num_labels = num_classes
        if not any((*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin"))):
            return LogitsOnly(auto.from_config(config))
        model, report = auto.from_pretrained(
            str(folder), config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
        )
    except ModelError:
        raise
    except Exception as error:  # a folder can be damaged in many ways
        raise ModelError(f"{folder} does not hold an image classifier: {_first_line(error)}.") from error
    other = {entry[0] for entry in report["mismatched_keys"]} | set(report["missing_keys"])
    if other and not new_classifier:
        raise ModelError(f"{folder} is of another network. missing or of another shape: {list_some(sorted(other), 3)}.")
    return LogitsOnly(model.float())


FAMILIES: dict[str, Callable[[str, int, int, bool], nn.Module]] = {
    "timm": build_timm,
    "torchvision": build_torchvision,
    "transformers": build_transformers,
}
"""(name, number of classes, channels, whether to replace a classifier of another width) -> a network."""
WAYS = ", ".join((*(f"{family}:NAME" for family in FAMILIES), *MODELS))


def import_package(name: str) -> Any:
    """Import an optional package; raise ArgumentError if it is missing or broken."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ArgumentError(f"{package} models need a package: pip install {package}.") from error
        raise ArgumentError(f"{package} cannot be imported: {_first_line(error)}.") from error
    except Exception as error:  # a build for another version of torch can raise anything
        raise ArgumentError(
            f"{package} is installed but cannot be imported: {_first_line(error)}. Install the version made for "
            f"torch {torch.__version__}."
        ) from error


def load_weights(model: nn.Module, path: Path, *, new_classifier: bool = False) -> None:
    """Load weights into the model from a .safetensors file, or a .pt file that holds only tensors."""
    own, found = model.state_dict(), named_as(model.state_dict(), read_weights(path))
    other = {name for name in own.keys() & found.keys() if own[name].shape != found[name].shape}
    widths = {(len(found[name]), len(own[name])) for name in other if own[name].ndim and found[name].ndim}
    is_classifier = len(widths) == 1 and all(own[name].shape[1:] == found[name].shape[1:] for name in other)
    if new_classifier and is_classifier:
        found, other = {**found, **{name: own[name] for name in other}}, set()
    differences = (
        ("missing", own.keys() - found.keys()),
        ("not in the model", found.keys() - own.keys()),
        ("of another shape", other),
    )
    found_differences = "; ".join(f"{what}: {list_some(sorted(names), 3)}" for what, names in differences if names)
    if found_differences:
        width = f" {_other_width(path, *widths.pop())}" if is_classifier else ""
        raise ModelError(f"{path} is of another network. {found_differences}.{width}")
    model.load_state_dict(found)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return tensors by name; a file that holds anything else, such as code, is refused before any of it runs."""
    if not path.is_file():
        raise ArgumentError(f"There is no file {path} with weights.")
    found: Any = _read_safetensors(path) if path.suffix == ".safetensors" else _read_tensors(path)
    for wrapping in WRAPPINGS:
        if isinstance(found, dict) and isinstance(found.get(wrapping), dict):
            found = found[wrapping]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"{path} holds no weights by name. Save model.state_dict().")
    return found


def named_as(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the prefix removed that keeps their names from matching the model's."""

    def without(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in found.items()}

    return max(map(without, PREFIXES), key=lambda named: len(named.keys() & own.keys()))


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    if not importlib.util.find_spec("safetensors"):
        raise ArgumentError(f"{path} needs a package: pip install safetensors.")
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
        beside = f" It asks for {wanted[1]}." if wanted else ""
        raise ModelError(
            f"{path} does not hold weights alone, and the rest could run as a program, so it was refused.{beside} "
            "Save model.state_dict()."
        ) from error
    except Exception as error:
        raise ModelError(
            f"{path} does not hold weights alone, or is damaged: {_first_line(error)}. Save model.state_dict()."
        ) from error


def _other_width(path: Path, theirs: int, ours: int) -> str:
    return (
        f"The classifier of {path.name} is for {theirs} classes, and there are {ours}. Give weights trained on these "
        "classes, or train with a new classifier."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
