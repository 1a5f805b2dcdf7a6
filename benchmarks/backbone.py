"""Feature extraction with EfficientNet-Lite0 on a CPU: ONNX Runtime compared with several ways of using torch.

    python benchmarks/backbone.py [--images 32] [--size 128] [--threads 1 2] [--rounds 40] [--compile]

All variants alternate in one process. The fastest round of each is reported, since other programs can only slow a round
down. The features of the exported model are compared with those of torch on the same images.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from rarefish.models.efficientnet_lite import NAME
from rarefish.models.loading import load_model
from rarefish.ops.onnx_runtime import OnnxBackbone

LAYER = "avgpool"


def eager(model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    """Returns a function that computes the features with torch, as `embed` does without ONNX Runtime."""
    backbone = OnnxBackbone(model, LAYER, images[:2], backend="torch")
    return lambda: backbone(images)


def in_bfloat16(model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    plain = eager(model, images)

    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return plain()

    return run


def compiled(model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    features = nn.Sequential(*[module for name, module in model.eval().named_children() if name != "fc"])
    function = torch.compile(features, dynamic=False)

    def run() -> Tensor:
        with torch.no_grad():
            return function(images)

    return run


def measure(images: Tensor, threads: int, rounds: int, with_compile: bool) -> dict[str, Any]:
    """Returns the results for this number of threads."""
    torch.set_num_threads(threads)
    model = load_model(NAME, 10, 3)
    contiguous = deepcopy(model).to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    began = time.perf_counter()
    backbone = OnnxBackbone(model, LAYER, images[:2], backend="onnx", num_threads=threads)
    opening = time.perf_counter() - began
    ours = "ONNX Runtime"
    ways = {
        ours: lambda: backbone(images),
        "torch, channels last (used without ONNX Runtime)": eager(model, images),
        "torch, contiguous": eager(contiguous, images),
        "torch, channels last, bfloat16": in_bfloat16(model, images),
    }
    if with_compile:
        ways["torch.compile"] = compiled(model, images.contiguous(memory_format=torch.channels_last))
    expected = eager(contiguous, images)()
    largest = float(expected.abs().max())
    differences = {name: float((way() - expected).abs().max()) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    rates = {name: round(len(images) / min(values), 1) for name, values in seconds.items()}
    return {
        "name": f"features of {NAME} at {images.shape[2]}×{images.shape[3]}, batches of {len(images)}, "
        f"{threads} thread{'s'[: threads - 1]}",
        "value": rates[ours],
        "unit": "images/s",
        "baseline": {name: rate for name, rate in rates.items() if name != ours},
        "ratio": {name: round(rates[ours] / rate, 2) for name, rate in rates.items() if name != ours},
        "floor": None,
        "medians": {name: round(len(images) / median(values), 1) for name, values in seconds.items()},
        "largest_difference": differences,
        "largest_difference_as_share_of_largest_feature": {
            name: value / largest for name, value in differences.items()
        },
        "seconds_to_open": round(opening, 1),
        "device": "cpu",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "onnxruntime": version("onnxruntime"),
        },
        "command": "python benchmarks/backbone.py" + (" --compile" if with_compile else ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/backbone.json"))
    arguments = parser.parse_args()
    shape = (arguments.images, 3, arguments.size, arguments.size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    figures = [measure(images, threads, arguments.rounds, arguments.compile) for threads in arguments.threads]
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
