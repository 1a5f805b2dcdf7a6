"""Matching on a GPU: the fused kernels compared with plain PyTorch in blocks.

    python benchmarks/matching.py [--images 1200000] [--centers 8192] [--depth 8] [--device cuda]

Descriptors are random, with features and scores of two layers of 256 and 512 channels, as in a ResNet-18. The baseline
multiplies a block of images by all centers, in float32, tf32 or bfloat16, and keeps the best images of each block. The
floor is the time of the two products at the bfloat16 rate of one large matrix product, measured in the same run.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rarefish.descriptors import Descriptors
from rarefish.kernels import Standardized, similarity, standardize_rows
from rarefish.matching import Matches, match_batches
from rarefish.ops.autotune import Tiles
from rarefish.ops.fused_matching import FAILED, best_matches, pack

WIDTHS = (256, 512)
BLOCK = 8192


def descriptors(count: int, device: str, seed: int) -> Standardized:
    generator = torch.Generator(device).manual_seed(seed)

    def layers() -> tuple[Tensor, ...]:
        made = [torch.empty(count, width, device=device) for width in WIDTHS]
        for layer in made:
            for part in layer.split(65_536):
                part.copy_(standardize_rows(torch.randn(part.shape, generator=generator, device=device)))
        return tuple(made)

    return Standardized(layers(), layers())


def in_blocks(centers: Standardized, pool: Standardized, depth: int) -> tuple[Tensor, Tensor]:
    """Returns the best images per center, computed in blocks with plain PyTorch."""
    device = pool.features[0].device
    best = torch.full((len(centers), depth), -torch.inf, device=device)
    rows = torch.zeros(len(centers), depth, device=device, dtype=torch.long)
    for start in range(0, len(pool), BLOCK):
        block = similarity(centers, pool[slice(start, start + BLOCK)], "fisher").float()
        value, row = block.topk(min(depth, block.shape[1]), dim=1)
        best, place = torch.cat([best, value], dim=1).topk(depth, dim=1)
        rows = torch.cat([rows, row + start], dim=1).gather(1, place)
    return best, rows


def as_select_does(centers: Standardized, pool: Standardized, depth: int) -> Matches:
    """Returns the table that select() makes of these descriptors, a few thousand at a time, ordered in float32."""
    device = pool.features[0].device

    def batch(rows: slice) -> Descriptors:
        part, index = pool[rows], torch.arange(len(pool))[rows]
        z, g = torch.cat(part.features, dim=1), torch.cat(part.scores, dim=1)
        label = torch.zeros(len(index), dtype=torch.long, device=device)
        return Descriptors(index, z, g, label, z[:, 0], label, z[:, :0], ("layer3", "layer4"), WIDTHS)

    batches = (batch(slice(start, start + BLOCK)) for start in range(0, len(pool), BLOCK))
    return match_batches(batches, centers, torch.zeros(len(centers), dtype=torch.long, device=device), "fisher", depth)


def as_dtype(points: Standardized, dtype: torch.dtype) -> Standardized:
    return Standardized(tuple(z.to(dtype) for z in points.features), tuple(g.to(dtype) for g in points.scores))


def measure(work: Callable[[], Any], device: str, repeats: int = 3) -> tuple[float, Any]:
    """Returns the time of the fastest run in milliseconds, and the result."""
    out, times = work(), []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        out = work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return min(times), out


def peak_rate(device: str, size: int) -> float:
    """Returns the floating-point operations per second of one large bfloat16 product."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    took, _ = measure(lambda: a @ b, device, repeats=10)
    return 2 * size**3 / (took / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_200_000)
    parser.add_argument("--centers", type=int, default=8192)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/matching.json"))
    arguments = parser.parse_args()
    device, depth = arguments.device, arguments.depth
    on_gpu = device == "cuda"
    centers, pool = descriptors(arguments.centers, device, 0), descriptors(arguments.images, device, 1)
    operations = 2 * arguments.images * arguments.centers * 2 * sum(WIDTHS)
    times: dict[str, float] = {}
    torch.backends.cuda.matmul.allow_tf32 = False
    times["float32 in blocks"], (_, exact) = measure(lambda: in_blocks(centers, pool, depth), device, 2)
    torch.backends.cuda.matmul.allow_tf32 = True
    times["tf32 in blocks"], _ = measure(lambda: in_blocks(centers, pool, depth), device)
    torch.backends.cuda.matmul.allow_tf32 = False
    halves = as_dtype(centers, torch.bfloat16), as_dtype(pool, torch.bfloat16)
    times["bfloat16 in blocks"], (_, rounded) = measure(lambda: in_blocks(*halves, depth), device)
    del halves
    tiles = None if on_gpu else Tiles(centers=16, images=64)
    packed = pack(centers), pack(pool)
    kept = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ours, (_, rows) = measure(lambda: best_matches(*packed, depth, tiles=tiles), device)
    memory = torch.cuda.max_memory_allocated() - kept if on_gpu else 0
    del packed
    whole, _ = measure(lambda: as_select_does(centers, pool, depth), device, 2)
    rate = peak_rate(device, 8192 if on_gpu else 256)

    def agreement(found: Tensor) -> float:
        """Returns the fraction of the exact choices that were found."""
        return float((found[:, :, None] == exact[:, None, :]).any(dim=1).float().mean())

    figure = {
        "name": f"matching, N = {arguments.images:,}, K = {arguments.centers:,}, L = 256 + 512, top {depth}",
        "value": round(ours, 2),
        "unit": "ms",
        "baseline": {name: round(value, 2) for name, value in times.items()},
        "ratio": {name: round(value / ours, 2) for name, value in times.items()},
        "floor": round(1000 * operations / rate, 2),
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python benchmarks/matching.py",
        "tflops": round(operations / ours / 1e9, 1),
        "peak_tflops": round(rate / 1e12, 1),
        "memory_over_inputs_mb": round(memory / 1e6, 1),
        "choices_as_in_float32": {"fused": agreement(rows), "bfloat16 in blocks": agreement(rounded)},
    }
    through = {
        **{name: figure[name] for name in ("unit", "floor", "device", "versions", "command")},
        "name": "the same as select() does it: packed, in parts, candidates ordered in float32, merged",
        "value": round(whole, 2),
        "baseline": {"float32 in blocks": figure["baseline"]["float32 in blocks"]},
        "ratio": {"float32 in blocks": round(times["float32 in blocks"] / whole, 2)},
    }
    print(json.dumps([figure, through], indent=2))
    if on_gpu:
        assert not FAILED, FAILED
        arguments.output.write_text(json.dumps([figure, through], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
