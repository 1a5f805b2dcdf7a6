"""Worker threads for blocking work, with a bounded queue for each kind; excess requests get status 503."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.exceptions import HTTPException

MOST_WAITING = 256
"""Maximum number of requests that wait or run in one queue."""


class WorkerQueue:
    """A thread pool for one kind of work. Writes get a single thread, because SQLite allows one writer at a time."""

    def __init__(self, name: str, threads: int, limit: int = MOST_WAITING) -> None:
        self.limit = limit
        self.waiting = 0
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"rarefish-{name}")

    async def run(self, work: Callable[..., Any], *given: Any) -> Any:
        """Runs the function in a worker thread and returns its result."""
        if self.waiting >= self.limit:
            raise HTTPException(503, "Too many requests at once. Try again in a second.", {"Retry-After": "1"})
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work, *given)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Waits for running work and cancels queued work."""
        self.pool.shutdown(wait=True, cancel_futures=True)


def cached(work: Callable[[], Any], lasts_s: float) -> Callable[[], Any]:
    """Returns a function that caches the result of `work` for this many seconds."""
    lock = threading.Lock()
    kept: list[tuple[float, Any]] = []

    def look() -> Any:
        with lock:
            if not kept or kept[0][0] < time.monotonic():
                value = work()
                kept[:] = [(time.monotonic() + lasts_s, value)]
            return kept[0][1]

    return look
