"""Packages re-export their public names, and importing a package imports none of its modules."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rarefish
from rarefish.lazy_imports import lazy_exports

SOURCE = Path(rarefish.__file__).parent
PACKAGES = [
    ".".join(("rarefish", *path.parent.relative_to(SOURCE).parts)) for path in sorted(SOURCE.rglob("__init__.py"))
]
TORCH_FREE = {
    "rarefish": ["RarefishError"],
    "rarefish.active_learning": ["Outlook", "Record", "expect_gain", "read_records"],
    "rarefish.cli": ...,
    "rarefish.exchange": ...,
    "rarefish.exchange.formats": ...,
    "rarefish.experiments": ["Cell", "Circumstances", "Experiment", "Method", "demo_recipe", "load_recipe"],
    "rarefish.labeling": ...,
    "rarefish.training": ["FINE_TUNING", "Epoch", "Training", "TrainingResult"],
    "rarefish.workspace": ["Store", "answer", "create_store", "index", "open_store", "settled", "take", "verify"],
}
"""Names that are imported without torch; `...` means all names of the package."""


def typed_exports(package: str) -> dict[str, str]:
    """Returns the names that a type checker finds in the package, with the modules that they come from."""
    path = SOURCE.joinpath(*package.split(".")[1:], "__init__.py")
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_comes_from_its_module(package: str) -> None:
    module, typed = import_module(package), typed_exports(package)
    assert len(PACKAGES) > 10 and module.__doc__
    assert sorted(module.__all__) == sorted(typed) == dir(module) and typed
    for name, home in typed.items():
        assert getattr(module, name) is getattr(import_module(home), name), name
        if isinstance(getattr(module, name), type):
            assert getattr(module, name).__module__ == home, name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_an_export(package: str) -> None:
    """Importing such a module would replace the exported name."""
    folder = SOURCE.joinpath(*package.split(".")[1:])
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(import_module(package).__all__)


def test_packages_and_torch_free_names_do_not_import_torch() -> None:
    wanted = {name: import_module(name).__all__ if names is ... else names for name, names in TORCH_FREE.items()}
    code = (
        "import sys; from importlib import import_module\n"
        f"for package in {PACKAGES!r}: import_module(package)\n"
        "assert 'numpy' not in sys.modules\n"
        f"for package, names in {wanted!r}.items():\n"
        "    for name in names:\n"
        "        getattr(import_module(package), name)\n"
        "        assert 'torch' not in sys.modules, f'{package}.{name}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_an_error() -> None:
    get, names = lazy_exports("rarefish.data", {"splits": ("Splits",), "digits": ("load_digits",)})
    assert get("Splits").__name__ == "Splits" and names() == ["Splits", "load_digits"]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"module 'rarefish\.data' has no attribute 'splts'"):
        get("splts")
