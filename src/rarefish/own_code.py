"""A function of the user's own, found by its address and called; what goes wrong in it is told with its place."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rarefish.errors import ArgumentError, ModelError, nearest


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
        if place.endswith(".py"):
            # Under a name that other processes find too: what they send each other is found by it.
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None and spec.loader is not None
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
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
