"""Re-exported names that are imported on first use, because importing torch takes seconds."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package that re-exports names of its modules.

    Args:
        package: The `__name__` of the package.
        homes: For each module of the package, the names that it defines. No name may be the same as that of a module,
            because Python sets this attribute of the package when it imports the module.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get, lambda: sorted(modules)
