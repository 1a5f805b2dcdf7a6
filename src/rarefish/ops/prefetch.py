"""Overlap work of host and GPU: copy batches to the GPU ahead of time, and results back without blocking."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from rarefish.data.reader import Batch

Item = TypeVar("Item")


def prefetch(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yields the same batches; on a GPU, each is copied there while the previous one is processed."""
    if device.type != "cuda":
        yield from batches
        return
    copy_stream, waiting = _copy_stream(device), None
    for batch in batches:
        with torch.cuda.stream(copy_stream):
            copied = replace(batch, images=batch.images.to(device, non_blocking=True))
        if waiting:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(copy_stream)
        copied.images.record_stream(torch.cuda.current_stream(device))
        waiting = copied
    if waiting:
        yield waiting


class CopyToHost:
    """An asynchronous copy of a tensor to the CPU.

    `wait()` blocks until the copy is done, but does not wait for GPU work that was queued after it.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.to("cpu", non_blocking=True)
        self.done = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def wait(self) -> Tensor:
        if self.done:
            self.done.synchronize()
        return self.values


def delay_by_one(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the same items, each after the next has been started, so that a GPU has work while results are read."""
    waiting: list[Item] = []
    for item in items:
        yield from waiting
        waiting = [item]
    yield from waiting


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the copy stream of a device; it is reused, because PyTorch keeps a stream's memory for that stream."""
    return torch.cuda.Stream(device)
