"""Tests are tiny: one thread is faster than two that wait for each other. Triton interprets where there is no GPU."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the processes that tests start
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

# Shapes and types are checked in every call, but for what Triton reads the source of.
SOURCE = Path(__file__).parents[1] / "src"
MODULES = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in (SOURCE / "rarefish").rglob("*.py")]
install_import_hook(
    [name for name in MODULES if name.rpartition(".")[2] not in ("__init__", "__main__", "triton_kernels")],
    "beartype.beartype",
)


@pytest.fixture(scope="session", autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests trust is not remembered for the user who runs them; commands that they start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield
