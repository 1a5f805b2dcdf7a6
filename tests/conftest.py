"""Tests are tiny: one thread is faster than two that wait for each other. Triton interprets where there is no GPU."""

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
