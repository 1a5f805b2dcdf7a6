"""How the products of `fused` are cut into tiles, tried out once for each shape on the GPU at hand."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tiles:
    """Centers, images and channels of a tile; warps, and loads under way at once."""

    centers: int = 128
    images: int = 128
    channels: int = 64
    warps: int = 8
    stages: int = 4
    side: int = 16
    """Blocks of centers that sweep over the images together."""


CANDIDATES = (
    Tiles(),
    Tiles(stages=5),
    Tiles(channels=128, stages=3),
    Tiles(channels=128, stages=2),
    Tiles(side=8),
    Tiles(centers=64, images=64, warps=4, stages=3),  # for GPUs with little shared memory
)
CHOSEN: dict[Hashable, Tiles] = {}
"""What was fastest, by shape."""


def tuned(shape: Hashable, work: Callable[[Tiles], object], device: torch.device) -> Tiles:
    """The fastest of a few for this shape; those that do not fit the GPU are passed over."""
    if shape not in CHOSEN:
        tried = {tiles: _milliseconds(work, tiles, device) for tiles in CANDIDATES}
        working = {tiles: found for tiles, found in tried.items() if isinstance(found, float)}
        if not working:
            raise next(iter(error for error in tried.values() if isinstance(error, Exception)))
        CHOSEN[shape] = min(working, key=lambda tiles: working[tiles])
    return CHOSEN[shape]


def _milliseconds(work: Callable[[Tiles], object], tiles: Tiles, device: torch.device) -> float | Exception:
    """Of the fastest of three runs, after one that compiles; or what went wrong."""
    if device.type != "cuda":
        return 0.0  # nothing to try out: the first will do
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
    except Exception as error:  # too much shared memory, most often
        return error
    return min(times)
