"""Descriptors compared with a forward pass alone and with the procedure of the paper's code.

    python benchmarks/descriptors.py [--models resnet18 resnet50 vit_b_16] [--batch 1024] [--batches 40] [--device cuda]

Images are random, have 224×224 pixels, and are already on the device. "The paper's way" is a forward pass in float32
with gradients of all parameters and a full backward pass, as in the published code. It runs strictly in float32, with
PyTorch's defaults, and with its best settings (tf32 everywhere, channels last, cuDNN autotuning). The floor is the
compiled forward pass alone, in bfloat16 with channels last. resnet18 is ours; the other models come from torchvision
and are skipped if it is not installed.
"""

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rarefish.data.reader import Batch
from rarefish.features import watched
from rarefish.fisher import describe_batches
from rarefish.models.networks import build_model
from rarefish.ops.compiled import AdaptivePass
from rarefish.pseudo_labels.rules import predicted

LAYERS = {
    "resnet18": ("layer3", "avgpool"),
    "resnet50": ("layer3", "avgpool"),
    "vit_b_16": ("encoder.layers.encoder_layer_10", "encoder.ln"),
}


def make(name: str, device: str) -> nn.Module:
    if name == "resnet18":
        return build_model(name, 1000, 3, torch.Generator().manual_seed(0)).to(device).eval()
    import torchvision  # pyright: ignore[reportMissingImports]

    return getattr(torchvision.models, name)().to(device).eval()


def in_16_bits(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, torch.bfloat16)


def set_tf32(is_on: bool) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_on


def papers_way(model: nn.Module, batches: list[Tensor]) -> None:
    """Computes all gradients in float32."""
    for images in batches:
        model.zero_grad(set_to_none=True)
        logits = model(images)
        functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum").backward()


@torch.no_grad()
def forward(run: Callable[[Tensor], Tensor], batches: list[Tensor], device: str) -> None:
    for images in batches:
        with in_16_bits(device):
            run(images)


def described(watch: AdaptivePass, layers: tuple[str, ...], batches: list[Tensor]) -> None:
    rows: Iterator[Batch] = (Batch(torch.arange(len(images)), images, None) for images in batches)
    for _ in describe_batches(watch, rows, layers, predicted):
        pass


def rate(work: Callable[[list[Tensor]], None], batches: list[Tensor], device: str, repeats: int = 3) -> float:
    """Returns images per second, the best of several runs after a warm-up that includes compilation."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    work(batches[:4])
    times = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        work(batches)
        wait()
        times.append(time.perf_counter() - began)
    return sum(map(len, batches)) / min(times)


def measure(name: str, device: str, size: int, count: int, with_compile: bool) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)
    few = [torch.randn(size, 3, 224, 224, generator=generator, device=device) for _ in range(min(4, count))]
    last = [b.contiguous(memory_format=torch.channels_last) for b in few]
    batches_last = [last[i % len(last)] for i in range(count)]
    model, layers, rates = make(name, device), LAYERS[name], {}
    # With large batches all gradients of a transformer do not fit: the paper's way gets half as many images at once.
    halves = [half for batch in few[:2] for half in batch.split(-(-size // 2))] * max(1, count // 16)
    model = model.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    set_tf32(False)
    rates["the paper's way, float32"] = rate(lambda b: papers_way(model, b), halves, device)
    torch.backends.cudnn.allow_tf32 = True
    rates["the paper's way, PyTorch's defaults"] = rate(lambda b: papers_way(model, b), halves, device)
    set_tf32(True)
    torch.backends.cudnn.benchmark = True
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    halves = [half.contiguous(memory_format=torch.channels_last) for half in halves]
    rates["the paper's way, at its best"] = rate(lambda b: papers_way(model, b), halves, device)
    torch.backends.cudnn.benchmark = False
    set_tf32(False)
    del halves
    model = model.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    model.zero_grad(set_to_none=True)
    with watched(model, layers, device, "bfloat16") as watcher:
        rates["ours, not compiled"] = rate(
            lambda b: described(AdaptivePass(watcher, False), layers, b), batches_last, device
        )
        if with_compile:
            adaptive = AdaptivePass(watcher, True)
            rates["ours"] = rate(lambda b: described(adaptive, layers, b), batches_last, device)
            if adaptive.compiled is None:
                print("torch.compile failed: see the warning above", flush=True)
                del rates["ours"]
    model = model.to(memory_format=torch.channels_last).requires_grad_(False)  # pyright: ignore[reportCallIssue]
    rates["forward alone"] = rate(lambda b: forward(model, b, device), batches_last, device)
    if with_compile:
        torch.compiler.reset()
        quick = torch.compile(model, dynamic=False)
        rates["forward alone, compiled"] = rate(lambda b: forward(quick, b, device), batches_last, device)
    ours = rates.pop("ours", rates["ours, not compiled"])
    floor = rates.get("forward alone, compiled", rates["forward alone"])
    return {
        "name": f"descriptors of {name} at 224×224, layers {' + '.join(layers)}, batches of {size}",
        "value": round(ours),
        "unit": "images/s",
        "baseline": {what: round(value) for what, value in rates.items()},
        "ratio": {what: round(ours / value, 3) for what, value in rates.items()},
        "floor": round(floor),
        "times_the_floor": round(floor / ours, 3),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python benchmarks/descriptors.py",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true", help="to try the script on a machine without a GPU")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/descriptors.json"))
    arguments = parser.parse_args()
    figures = []
    for name in arguments.models:
        if name != "resnet18" and not find_spec("torchvision"):
            print(f"{name} is left out: torchvision is not installed.")
            continue
        figures.append(measure(name, arguments.device, arguments.batch, arguments.batches, not arguments.no_compile))
        print(json.dumps(figures[-1], indent=2), flush=True)
        if arguments.device == "cuda":
            arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        gc.collect()
        torch.compiler.reset()


if __name__ == "__main__":
    main()
