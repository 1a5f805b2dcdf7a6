"""Tests are tiny: one thread is faster than two that wait for each other. Triton interprets where there is no GPU."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

from tests.browser import stop_browser

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the processes that tests start
# A shell's background job ignores SIGINT, and nohup SIGHUP; the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

# Shapes and types are checked in every call, but for what Triton reads the source of.
SOURCE = Path(__file__).parents[1] / "src"
MODULES = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in (SOURCE / "rarefish").rglob("*.py")]
install_import_hook(
    [name for name in MODULES if name.rpartition(".")[2] not in ("__init__", "__main__", "triton_kernels")],
    "beartype.beartype",
)


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores, because tests wait for processes, servers and browsers."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, slow tests come first, so that none has one left when the others are done."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session", autouse=True)
def one_browser() -> Iterator[None]:
    """The Chromium that the first test of a page starts ends with the last test."""
    yield
    stop_browser()


@pytest.fixture(scope="session", autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests trust and keep is not remembered for the user who runs them; commands that they start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
