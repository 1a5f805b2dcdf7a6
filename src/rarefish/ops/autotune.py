"""Tile sizes for the kernels of `fused_matching`, chosen by timing them once per shape on the current GPU."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tiles:
    """Tile sizes in centers, images and channels, and the number of warps and pipeline stages."""

    centers: int = 128
    images: int = 128
    channels: int = 64
    warps: int = 8
    stages: int = 4
    side: int = 16
    """Number of center blocks that pass over the images together, so that both are read from the cache."""


CANDIDATES = (
    Tiles(),
    Tiles(stages=5),
    Tiles(channels=128, stages=3),
    Tiles(channels=128, stages=2),
    Tiles(side=8),
    Tiles(centers=64, images=64, warps=4, stages=3),  # for GPUs with little shared memory
)
CHOSEN: dict[Hashable, Tiles] = {}
"""The fastest tiles by shape."""


def tuned(shape: Hashable, work: Callable[[Tiles], object], device: torch.device) -> Tiles:
    """Returns the fastest candidate for this shape; candidates that do not fit the GPU are skipped."""
    if shape not in CHOSEN:
        results = {tiles: _milliseconds(work, tiles, device) for tiles in CANDIDATES}
        working = {tiles: result for tiles, result in results.items() if isinstance(result, float)}
        if not working:
            raise next(iter(error for error in results.values() if isinstance(error, Exception)))
        CHOSEN[shape] = min(working, key=lambda tiles: working[tiles])
    return CHOSEN[shape]


def _milliseconds(work: Callable[[Tiles], object], tiles: Tiles, device: torch.device) -> float | Exception:
    """Returns the time of the fastest of three runs, after one that compiles, or the error that was raised."""
    if device.type != "cuda":
        return 0.0  # nothing to tune, so the first candidate is used
    try:
        work(tiles)
        times = []
        for _ in range(3):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            work(tiles)
            ended.record()
            ended.synchronize()
            times.append(began.elapsed_time(ended))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # usually too much shared memory
        return error
    return min(times)
