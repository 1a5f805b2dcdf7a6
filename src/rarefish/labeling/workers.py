"""Threads for what would hold up the server, with a bounded line before them: a flood is turned away, not stored."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.exceptions import HTTPException

MOST_WAITING = 256
"""Requests that may wait for one kind of work."""


class WorkerQueue:
    """So many threads for one kind of work. SQLite takes one writer at a time: one thread is a fair line for them."""

    def __init__(self, name: str, threads: int, places: int = MOST_WAITING) -> None:
        self.places = places
        self.waiting = 0
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"rarefish-{name}")

    async def run(self, work: Callable[..., Any], *given: Any) -> Any:
        if self.waiting >= self.places:
            raise HTTPException(503, "Too many requests at once. Ask again in a second.", {"Retry-After": "1"})
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work, *given)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


def cached(work: Callable[[], Any], lasts_s: float) -> Callable[[], Any]:
    """The same result for a while: many pages that ask how far the work is cost one look."""
    lock = threading.Lock()
    kept: list[tuple[float, Any]] = []

    def look() -> Any:
        with lock:
            if not kept or kept[0][0] < time.monotonic():
                value = work()
                kept[:] = [(time.monotonic() + lasts_s, value)]
            return kept[0][1]

    return look
