"""A function of the user's own, found by its address and called; what goes wrong in it is told with its place."""

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from rarefish.errors import ArgumentError, ModelError, nearest

__path__: list[str] = []
"""Python takes this module for a package: files of the user's are modules in it, and `FilesByName` finds them."""


class FilesByName(MetaPathFinder):
    """Finds a file of the user's by the name of its module, which holds the path.

    Another process finds a class by that name too, and a file called types.py does not take the place of Python's own.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = re.fullmatch(rf"{re.escape(__name__)}\.\w*_x((?:[0-9a-f]{{2}})+)", fullname)
        return importlib.util.spec_from_file_location(fullname, os.fsdecode(bytes.fromhex(found[1]))) if found else None


sys.meta_path.append(FilesByName())


def module_name(place: str) -> str:
    """The name of the module that the file is loaded as."""
    return f"{__name__}.{re.sub(r'[^0-9a-zA-Z]', '_', Path(place).stem)}_x{os.fsencode(place).hex()}"


def _load(place: str) -> ModuleType:
    """The file as a module, run anew."""
    name = module_name(place)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def call_function(function: Callable[..., Any], address: str, num_classes: int) -> Any:
    """What the user's function gives; what goes wrong inside is told with its place."""
    try:
        told = {"num_classes": num_classes} if "num_classes" in inspect.signature(function).parameters else {}
        return function(**told)
    except Exception as error:
        raise ModelError(f"{address} failed: {type(error).__name__}: {error} ({_place(error)}).") from error


def _place(error: BaseException) -> str:
    """File and line where it was raised."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else "no place"


def find_function(address: str, ways: str) -> Any:
    """The function at FILE.py:FUNCTION or module:function; `ways` are other ways to name a model."""
    place, _, name = address.rpartition(":")
    try:
        module = _load(place) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, FileNotFoundError, ValueError) as error:
        raise ArgumentError(
            f"There is no {place!r}: {error}. A model is FILE.py:FUNCTION, module:function, {ways}."
        ) from error
    except Exception as error:  # the user's own code, or what is no code at all
        where = f"line {error.lineno}" if isinstance(error, SyntaxError) else _place(error)
        raise ModelError(f"{place} cannot be loaded: {type(error).__name__}: {error} ({where}).") from error
    known = [key for key, value in vars(module).items() if callable(value)]
    if name not in known:
        raise ArgumentError(f"{place} has no function {name!r}. {nearest(name, known)}")
    return getattr(module, name)
