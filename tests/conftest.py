"""Tests are tiny: one thread is faster than two that wait for each other. Triton interprets where there is no GPU."""

import os
from pathlib import Path

import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the processes that tests start
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

# Shapes and types are checked in every call, but for what Triton reads the source of.
SOURCE = Path(__file__).parent.parent / "src"
MODULES = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in (SOURCE / "rarefish").rglob("*.py")]
install_import_hook(
    [name for name in MODULES if name.rpartition(".")[2] not in ("__init__", "__main__", "fused_kernels")],
    "beartype.beartype",
)
