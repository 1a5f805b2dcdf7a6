"""Hashes, by name, of everything that the result of a selection depends on.

Processes that share a selection compare these hashes before any work. Files left by a killed run are used only if all
hashes are equal.
"""

import inspect
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from rarefish.data.hashing import digest, digest_file
from rarefish.data.reader import UNREADABLE, Data, Fingerprinted, InMemory, image_of, label_of
from rarefish.data.remaining_indices import Left
from rarefish.errors import DataError
from rarefish.models.layer_selection import device_of

SAMPLED = 16
"""Number of items that are hashed if the kind of the dataset is unknown."""
AT_ONCE = 2**24
"""Maximum number of tensor elements that are hashed at once."""
PLAIN = (bool, int, float, str, types.NoneType, types.FunctionType, types.BuiltinFunctionType)
"""Types of layer attributes that count as settings."""
PACKAGE = Path(__file__).parents[1]


def run_inputs(
    model: nn.Module,
    pool: Data,
    validation: Data,
    remaining: Sequence[int],
    labeled: Mapping[int, int],
    failures: Tensor | Sequence[bool] | None,
    generator_state: Tensor,
    *,
    groups: Tensor | None = None,
    budget: int,
    method: str = "fisher",
    cross_fit: bool = False,
    kernel: str,
    labels: object,
    layers: Sequence[str],
    precision: str,
    device: torch.device | str | None,
    collate_fn: Callable[..., Any] | None,
) -> dict[str, str]:
    """Returns a hash of each input that the result depends on, by names that users understand."""
    kind = (device_of(model) if device is None else torch.device(device)).type
    return {
        "rarefish version": digest([sys.modules["rarefish"].__version__]),
        "torch version": digest([torch.__version__]),
        **{f"pool {name}": value for name, value in digest_data(pool).items()},
        **{f"validation {name}": value for name, value in digest_data(validation, with_contents=True).items()},
        "collate function": digest_code([collate_fn]),
        "budget": digest([int(budget)]),
        "method": digest([method, cross_fit]),
        "kernel": digest([kernel]),
        "label estimator": digest([labels, digest_code([type(labels)])]),
        "layers": digest(layers),
        "precision": digest([precision, kind if precision == "auto" else None]),
        "excluded images": digest(_excluded(remaining)),
        "labeled images": digest(sorted((int(index), int(label)) for index, label in labeled.items())),
        "groups": digest([None] if groups is None else [digest_tensor(groups)]),
        "failure flags": digest([None] if failures is None else map(bool, failures)),
        "random generator": digest_tensor(generator_state),
        "model structure": digest(_structure(model)),
        "model weights": digest(_weights(model)),
        "model code": digest_code(_own_parts(model)),
    }


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Returns the names of the inputs that differ."""
    return [name for name in {**own, **other} if own.get(name) != other.get(name)]


def digest_data(data: Data, *, with_contents: bool = False) -> dict[str, str]:
    """Returns hashes of what a dataset consists of; with `with_contents`, hashes files and not only their metadata."""
    known = {"type": digest([type(data).__qualname__, digest_code([type(data)])]), "length": digest([len(data)])}
    if isinstance(data, Fingerprinted):
        return {**known, **data.fingerprints(with_contents=with_contents)}
    if isinstance(data, Subset):
        return {**known, **digest_data(data.dataset, with_contents=with_contents), "subset": digest(data.indices)}  # pyright: ignore[reportArgumentType]
    if isinstance(data, TensorDataset):
        images, *labels = map(digest_tensor, data.tensors)
        return {**known, "labels": digest(labels), "images": images}
    targets = getattr(data, "targets", None)
    own = {} if targets is None else {"labels": digest(np.asarray(targets).tolist())}
    if isinstance(data, InMemory):
        rows = torch.arange(len(data)).split(1000)
        return {**known, **own, "images": digest(digest_tensor(data.take(some)) for some in rows)}
    places = sorted({round(place) for place in np.linspace(0, len(data) - 1, SAMPLED)})
    return {**known, **own, "items": digest(_stable_item(data, place) for place in places)}


def digest_tensor(value: Tensor) -> str:
    """Returns a hash of the dtype, shape and values, computed part by part."""
    whole = sha256(repr((value.dtype, tuple(value.shape))).encode())
    rows = value.detach().reshape(len(value), -1) if value.ndim and value.numel() else value.detach().reshape(1, -1)
    for some in rows.split(max(1, AT_ONCE // max(1, rows.shape[1]))):
        whole.update(some.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()


def digest_code(parts: Iterable[object]) -> str:
    """Returns a hash of the source files of these classes and functions, and of the user's own files that they import.

    For an installed package, only the file of the class itself counts; torch and rarefish are identified by version.
    """
    parts = [part for part in parts if isinstance(part, (type, types.FunctionType))]
    pending, seen, found = [sys.modules.get(part.__module__) for part in parts], set(), set()
    without_file = [part for part in parts if _source_of(sys.modules.get(part.__module__)) is None]
    while pending:
        module = pending.pop()
        path = _source_of(module)
        if module is None or module in seen or path is None or _has_version(path):
            continue
        seen.add(module)
        found.add(digest_file(path))
        if not _is_installed(path):
            pending += [other for other in _reached_from(module) if not _is_installed(_source_of(other) or PACKAGE)]
    return digest([*sorted(found), *(_bytecode(part) for part in without_file if part.__module__ != "builtins")])


TRAINED = ("num_classes", "num_labels")
"""Attributes of a model that describe its classifier."""


def digest_backbone(model: nn.Module, layer: str, classifier: str | None) -> str:
    """Returns a hash of everything in the model that the features of a layer may depend on, except the classifier."""

    def is_below(name: str) -> bool:
        return classifier is None or not f"{name}.".startswith(f"{classifier}.")

    structure = [
        (name, type(module).__qualname__, [(key, value) for key, value in _settings(module) if key not in TRAINED])
        for name, module in model.named_modules()
        if is_below(name)
    ]
    weights = [(name, key, value) for name, key, value in _weights(model) if is_below(name)]
    return digest([layer, structure, weights, digest_code(_own_parts(model))])


def _excluded(remaining: Sequence[int]) -> list[object]:
    """Returns values that identify the indices missing from the remaining ones."""
    is_sparse = isinstance(remaining, Left)
    return [remaining.start, remaining.stop, remaining.gaps.tobytes()] if is_sparse else [len(remaining)]


def _structure(model: nn.Module) -> Iterator[object]:
    """Yields the types and settings of all layers, and which parameters are trainable."""
    for name, module in model.named_modules():
        yield name, type(module).__qualname__, _settings(module)
    for name, parameter in model.named_parameters():
        yield name, tuple(parameter.shape), str(parameter.dtype), parameter.requires_grad


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    """Returns the names and values of a layer's settings."""
    return sorted((key, _plain(value)) for key, value in vars(module).items() if _is_setting(key, value))


def _is_setting(name: str, value: object) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return name != "training" and not name.startswith("_") and all(isinstance(value, PLAIN) for value in values)


def _plain(value: object) -> str:
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return repr([_plain(part) for part in value]) if isinstance(value, (tuple, list)) else repr(value)


def _weights(model: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Yields parameters, buffers (persistent or not), and tensors that are neither."""
    for name, module in model.named_modules():
        own = {**module._parameters, **module._buffers, **vars(module)}
        for key in sorted(key for key, value in own.items() if isinstance(value, Tensor)):
            yield name, key, digest_tensor(own[key])


def _own_parts(model: nn.Module) -> Iterator[object]:
    """Yields the classes of the model's layers, and functions attached to them."""
    for module in model.modules():
        yield from type(module).__mro__
        yield from (value for value in vars(module).values() if isinstance(value, types.FunctionType))
        yield from (*module._forward_hooks.values(), *module._forward_pre_hooks.values())


def _source_of(module: types.ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and file.endswith(".py") and Path(file).is_file() else None


def _has_version(path: Path) -> bool:
    """Returns whether the file belongs to Python, torch or rarefish, whose versions identify it."""
    homes = (PACKAGE, Path(torch.__file__).parent)
    is_standard = path.is_relative_to(sysconfig.get_path("stdlib")) and not _is_installed(path)
    return is_standard or any(path.is_relative_to(home) for home in homes)


def _is_installed(path: Path) -> bool:
    return path.is_relative_to(PACKAGE) or bool({"site-packages", "dist-packages"} & set(path.parts))


def _reached_from(module: types.ModuleType) -> Iterator[types.ModuleType | None]:
    for value in list(vars(module).values()):
        if isinstance(value, types.ModuleType):
            yield value
        elif isinstance(value, (type, types.FunctionType)):
            yield sys.modules.get(value.__module__)


def _bytecode(part: "type | types.FunctionType") -> str:
    """Returns the bytecode of a class or function without a source file, such as one in a notebook."""
    functions = [part] if isinstance(part, types.FunctionType) else inspect.getmembers(part, inspect.isfunction)
    found = [function[1] if isinstance(function, tuple) else function for function in functions]
    return digest(piece for function in found for piece in _pieces(function.__code__))


def _pieces(code: types.CodeType) -> Iterator[object]:
    yield from (code.co_code, code.co_names)
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _pieces(value)
        elif isinstance(value, (int, float, str, bytes, types.NoneType)):
            yield value


def _stable_item(data: Data, index: int) -> str:
    """Returns a hash of the item, or a constant if the item changes from read to read."""
    first, second = (_item(data, index) for _ in range(2))
    return first if first == second else "changes"


def _item(data: Data, index: int) -> str:
    try:
        item = data[index]
        return digest([_value(image_of(item)), _value(label_of(item))])
    except (*UNREADABLE, DataError):
        return "unreadable"


def _value(value: Any) -> object:
    if isinstance(value, (Tensor, np.ndarray)):
        return digest_tensor(torch.as_tensor(value))
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    return value if isinstance(value, (int, float, str, bytes, types.NoneType)) else type(value).__qualname__
