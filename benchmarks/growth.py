"""How time and memory of a selection grow with the pool: N = 10⁴ … 10⁶ on a CPU, 10⁵ … 10⁷ on a GPU.

    python benchmarks/growth.py [--device cuda] [--output benchmarks/results/growth_cpu.json]

Images are made on the way, each from its own index, so the data set itself takes no memory; the network is a LeNet on
28×28 images, with 1,000 validation images and 500 picks. On a CPU that is select() with its defaults; on a GPU, where
no decoder could keep up, images are made on the device, described and matched. Every size runs in a process of its own.
Memory is what the process held at most, Python and libraries included; on a GPU, what was allocated there.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rarefish
from rarefish.data.reader import Batch
from rarefish.features import watched
from rarefish.fisher import describe_batches
from rarefish.kernels import standardize
from rarefish.matching import distinct, first_depth, match_batches
from rarefish.models.networks import build_model
from rarefish.ops.compiled import AdaptivePass
from rarefish.ops.fused_matching import FAILED
from rarefish.pseudo_labels.rules import predicted

SIZES = {
    "cpu": (10_000, 30_000, 100_000, 300_000, 1_000_000),
    "cuda": (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
}
PATTERNS = 1_000


class Made:
    """Images by index: one of some patterns, shifted and turned about by what the index says."""

    def __init__(self, count: int, with_labels: bool = False) -> None:
        self.count, self.with_labels = count, with_labels
        self.patterns = torch.randn(PATTERNS, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor | tuple[Tensor, int]:
        number, rest = index % PATTERNS, index // PATTERNS
        image = self.patterns[number].roll((rest % 28, rest // 28 % 28), (1, 2)) * (1 + rest // 784 % 13 / 13)
        return (image, number % 10) if self.with_labels else image


def batches_on(device: str, num_images: int, size: int = 16_384) -> Iterator[Batch]:
    """The same kind of images made on a GPU, a batch at a time: no decoder could keep up with it."""
    patterns = Made(0).patterns.to(device)
    for first in range(0, num_images, size):
        index = torch.arange(first, min(first + size, num_images))
        here = index.to(device)
        yield Batch(index, patterns[here % PATTERNS] * (1 + (here // PATTERNS % 97)[:, None, None, None] / 97), None)


def peak_mb(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def measure(num_images: int, device: str) -> dict[str, float]:
    work = {"cpu": whole_selection, "cuda": pass_and_matching}[device]
    work(min(num_images, 200_000) if device == "cuda" else 20_000)  # warms up
    began = time.perf_counter()
    work(num_images)
    return {"seconds": time.perf_counter() - began, "megabytes": peak_mb(device)}


def whole_selection(num_images: int) -> None:
    model = build_model("lenet", 10, 1, torch.Generator().manual_seed(0))
    rarefish.select(
        model, Made(num_images), Made(1_000, with_labels=True), budget=500, batch_size=1_000, progress=False
    )


def pass_and_matching(num_images: int, device: str = "cuda") -> None:
    """What a selection does with the pool: describe it, and keep the best images of 1,000 centers."""
    model, layers = build_model("lenet", 10, 1, torch.Generator().manual_seed(0)).to(device), ("conv2", "fc1")
    trusted = rarefish.describe(model, Made(1_000, with_labels=True), layers=layers, progress=False)
    centers = standardize(trusted)
    with watched(model, layers, device) as watcher:
        described = describe_batches(AdaptivePass(watcher, False), batches_on(device, num_images), layers, predicted)
        found = match_batches(described, centers, trusted.label, "fisher", first_depth(500, centers))
    assert len(distinct(found, 500).index) == 500 and not FAILED, FAILED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--images", type=int, help="only this size, in this process")
    parser.add_argument("--most", type=int, default=10**9, help="leave larger sizes out")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.images:
        print(json.dumps(measure(arguments.images, device)))
        return
    figures = []
    for size in SIZES[device]:
        if size > arguments.most:
            continue
        command = [sys.executable, __file__, "--device", device, "--images", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures += to_figures(size, json.loads(done.stdout.splitlines()[-1]), device)
        print(json.dumps(figures[-2:]), flush=True)
    output = arguments.output or Path(f"benchmarks/results/growth_{device}.json")
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if find_spec("matplotlib"):
        draw(sorted(output.parent.glob("growth_*.json")), Path("docs/images/growth.png"))


def draw(files: list[Path], path: Path) -> None:
    """Seconds and megabytes over the number of images, both in logarithms; a dotted line grows in proportion."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for file in files:
        figures = json.loads(file.read_text(encoding="utf-8"))
        for panel, unit in zip(panels, ("seconds", "megabytes"), strict=True):
            sizes, values = zip(*((f["images"], f["value"]) for f in figures if f["unit"] == unit), strict=True)
            panel.plot(sizes, values, marker="o", label=figures[0]["device"])
            if unit == "seconds":
                panel.plot(sizes, [values[-1] * size / sizes[-1] for size in sizes], ":", color="gray", zorder=0)
    for panel, unit in zip(panels, ("seconds", "megabytes"), strict=True):
        panel.set(xscale="log", xlabel="images in the pool", title=unit)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[1].set_ylim(bottom=0, top=1.15 * panels[1].get_ylim()[1])
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def to_figures(size: int, measured: dict[str, float], device: str) -> list[dict[str, Any]]:
    kind = torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    return [
        {
            "name": f"select() from {size:,} images",
            "images": size,
            "value": round(measured[unit], 2),
            "unit": unit,
            "baseline": None,
            "ratio": None,
            "floor": None,
            "device": kind,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "command": f"python benchmarks/growth.py --device {device}",
        }
        for unit in ("seconds", "megabytes")
    ]


if __name__ == "__main__":
    main()
