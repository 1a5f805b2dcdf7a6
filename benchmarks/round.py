"""One complete selection at the size of ImageNet on a GPU, with the time of each phase.

    python benchmarks/round.py [--images 1200000] [--validation 50000] [--budget 64000] [--size 224] [--device cuda]

The model is a ResNet-18 with 1,000 classes that gets three tenths of the validation set wrong. Images are random
patterns on the device: a few thousand at 224×224, because 1.2 million would not fit. The pool and the validation set
repeat these patterns, each with a brightness that depends on its index. Labels come from the paper's density estimator
and from the default, the posterior. Matching and greedy k-center are timed within the same run, with the device
synchronized; a smaller selection serves as a warm-up. If the budget is larger than the number of failures, all failures
are centers. The floor is the compiled forward pass alone over the pool, from benchmarks/results/descriptors.json if
that file exists.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import rarefish
from rarefish import matching, selection
from rarefish.distributed.executor import SingleProcess
from rarefish.models.networks import build_model
from rarefish.ops.fused_matching import FAILED

WRONG = 0.3


class Repeated:
    """A dataset of any size made from a few images, with a brightness per index; a list of rows returns a tensor."""

    def __init__(self, few: Tensor, count: int) -> None:
        self.few, self.count, self.device = few, count, few.device

    def __len__(self) -> int:
        return self.count

    def size(self, _: int) -> int:
        return self.count

    def __getitem__(self, rows: Tensor | int) -> Tensor:
        rows = torch.as_tensor(rows, device=self.device)
        light = 1 + (rows // len(self.few) % 89) / 89
        return self.few[rows % len(self.few)] * light.to(self.few.dtype).reshape(*rows.shape, 1, 1, 1)


class Clock:
    """Seconds spent in some functions, with the device synchronized."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, {}

    def around(self, where: Any, name: str, phase: str) -> None:
        """Adds the time of every call of where.name to the phase."""
        plain = getattr(where, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            self.wait()
            began = time.perf_counter()
            done = plain(*arguments, **more)
            self.wait()
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began
            return done

        setattr(where, name, timed)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def make_images(count: int, size: int, device: str, generator: torch.Generator) -> Tensor:
    """Returns coarse random patterns with some noise, because a network hardly distinguishes images of pure noise."""
    made = torch.empty(count, 3, size, size, device=device, dtype=torch.float16 if device == "cuda" else None)
    for part in made.split(1024):
        coarse = torch.randn(len(part), 3, 7, 7, generator=generator, device=device)
        noise = torch.randn(part.shape, generator=generator, device=device)
        part.copy_(functional.interpolate(coarse, size=(size, size), mode="bicubic") + noise / 4)
    return made


@torch.no_grad()
def enliven(model: nn.Module, images: Tensor) -> None:
    """Sets the statistics of BatchNorm as if trained on such images; otherwise, all images would look alike."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average
    model.train()
    for part in images[:2048].split(256):
        model(part.float())
    for norm in norms:
        norm.momentum = 0.1
    model.eval()


def answers(model: nn.Module, images: Repeated, device: str) -> Tensor:
    """Returns the model's predictions; for three in ten images, the class after the predicted one."""
    rows = torch.arange(len(images))
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        found = torch.cat([model(images[some.to(device)].float()).argmax(dim=1) for some in rows.split(1024)]).cpu()
    return torch.where(rows % 10 < 10 * WRONG, (found + 1) % 1000, found)


def measure(labels: str, arguments: argparse.Namespace, floor: float | None) -> dict[str, Any]:
    device = arguments.device
    generator = torch.Generator(device).manual_seed(0)
    few = make_images(min(8192, arguments.images), arguments.size, device, generator)
    model = build_model("resnet18", 1000, 3, torch.Generator().manual_seed(0)).to(device).eval()
    enliven(model, few)
    trusted, pool = Repeated(few, arguments.validation), Repeated(few, arguments.images)
    validation = TensorDataset(trusted, answers(model, trusted, device))  # pyright: ignore[reportArgumentType]
    clock = Clock(device)
    how: dict[str, Any] = {"budget": arguments.budget, "labels": labels, "device": device, "progress": False}
    how |= {"batch_size": 1024, "compile": arguments.compile}
    some = TensorDataset(Repeated(few, min(arguments.images, 200_000)))  # pyright: ignore[reportArgumentType]
    rarefish.select(model, some, validation, **(how | {"budget": min(arguments.budget, len(some)), "compile": False}))
    plain = [(matching, "match", matching.match), (matching, "merge", matching.merge)]
    plain += [(selection, name, getattr(selection, name)) for name in ("make_plan", "k_center")]
    plain += [(SingleProcess, "map_shards", SingleProcess.map_shards)]
    clock.around(matching, "match", "matching")
    clock.around(selection, "k_center", "k-center")
    clock.around(selection, "make_plan", "all of validation")
    clock.around(SingleProcess, "map_shards", "all of the pool")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    clock.wait()
    began = time.perf_counter()
    chosen = rarefish.select(model, TensorDataset(pool), validation, **how)  # pyright: ignore[reportArgumentType]
    clock.wait()
    total = time.perf_counter() - began
    for where, name, function in plain:
        setattr(where, name, function)
    assert len(chosen) == arguments.budget and not FAILED, FAILED
    phases = {phase: round(seconds, 2) for phase, seconds in clock.seconds.items()}
    ours = phases["matching"] + phases["k-center"]
    return {
        "name": f"a selection, {arguments.images:,} images at {arguments.size}×{arguments.size}, {labels} labels, "
        f"{arguments.validation:,} validation images, {chosen.num_failures:,} failures, budget {arguments.budget:,}"
        + ("" if arguments.compile is None else ", compiled" if arguments.compile else ", not compiled"),
        "value": round(total, 2),
        "unit": "s",
        "baseline": phases,
        "ratio": {"matching and k-center": round(ours / total, 4)},
        "floor": round(floor, 2) if floor else None,
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20) if device == "cuda" else None,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python benchmarks/round.py",
    }


def forward_alone(num_images: int) -> float | None:
    """Returns the seconds of a compiled forward pass over this many images, from the results of the other benchmark."""
    path = Path("benchmarks/results/descriptors.json")
    return num_images / json.loads(path.read_text())[0]["floor"] if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_200_000)
    parser.add_argument("--validation", type=int, default=50_000)
    parser.add_argument("--budget", type=int, default=64_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--labels", nargs="+", default=["density", "posterior"])
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: where it pays")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/round.json"))
    arguments = parser.parse_args()
    figures = []
    for labels in arguments.labels:
        figures.append(measure(labels, arguments, forward_alone(arguments.images)))
        print(json.dumps(figures[-1], indent=2), flush=True)
        if arguments.device == "cuda":
            arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
