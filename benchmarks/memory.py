"""Memory of select() on a large pool, beside a twin that keeps all descriptors and the whole kernel matrix.

    python benchmarks/memory.py [--images 200000] [--output benchmarks/results/memory.json]

Each side runs in a process of its own; the figure is its peak resident memory over what it held with the model loaded
and one batch described.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import rarefish
from rarefish.kernels import similarity, standardize

LIMIT_MB = 1500
WIDTHS = (256, 512)


class Made:
    """Images made on the way, each from its own index: the data set itself takes no memory."""

    def __init__(self, count: int, with_labels: bool = False) -> None:
        self.count, self.with_labels = count, with_labels

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor | tuple[Tensor, int]:
        image = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
        return (image, index % 10) if self.with_labels else image


def make_model() -> nn.Module:
    torch.manual_seed(0)
    first, second = nn.Linear(64, WIDTHS[0]), nn.Linear(WIDTHS[0], WIDTHS[1])
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(WIDTHS[1], 10))


def measure(way: str, num_images: int) -> float:
    """Peak memory in MB over the model's own."""
    model, pool, validation, layers = make_model(), Made(num_images), Made(1000, with_labels=True), ("2", "4")
    rarefish.describe(model, Made(256), layers=layers, labels=None, progress=False)
    before = peak_mb()
    if way == "select":
        rarefish.select(model, pool, validation, budget=500, layers=layers, progress=False)
    else:
        centers = rarefish.describe(model, Made(500), layers=layers, progress=False)
        everything = rarefish.describe(model, pool, layers=layers, progress=False)
        similarity(standardize(centers), standardize(everything)).topk(8, dim=1)
    return peak_mb() - before


def peak_mb() -> float:
    """Of this process alone; getrusage's figure would begin with the parent's."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def measure_apart(way: str, num_images: int) -> float:
    command = [sys.executable, __file__, "--images", str(num_images), "--way", way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/memory.json"))
    parser.add_argument("--way", choices=["select", "all at once"])
    arguments = parser.parse_args()
    if arguments.way:
        print(measure(arguments.way, arguments.images))
        return
    ours, twin = (measure_apart(way, arguments.images) for way in ("select", "all at once"))
    figure = {
        "name": f"peak memory of select() over the model, {arguments.images:,} images, L = {sum(WIDTHS)}, 500 picks",
        "value": round(ours),
        "unit": "MB",
        "baseline": {"all descriptors and the whole matrix": round(twin)},
        "ratio": {"all descriptors and the whole matrix": round(twin / ours, 2)},
        "floor": LIMIT_MB,
        "device": "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": f"python benchmarks/memory.py --images {arguments.images}",
    }
    arguments.output.write_text(json.dumps([figure], indent=2) + "\n")
    print(json.dumps(figure, indent=2))
    if ours > LIMIT_MB:
        sys.exit(f"select() took {ours:.0f} MB, more than {LIMIT_MB}.")


if __name__ == "__main__":
    main()
