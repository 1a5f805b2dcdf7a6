"""Pools of worker processes that end when the process that started them ends, or when one of them is killed."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager


@contextmanager
def worker_pool(
    num_workers: int, start_method: str, initializer: Callable[[], None] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes; `initializer` runs first in each process. After an error, all of them are killed.

    If a worker is killed, Python terminates the others, except for one that is just being started, and waits for that
    one forever. Alternatively, the start fails with an OSError, because the pool's queue is already closed.
    """
    earlier = set(multiprocessing.active_children())
    context = multiprocessing.get_context(start_method)
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_begin, initargs=(initializer,)) as pool:
        try:
            yield pool
        except BaseException as error:
            for process in set(multiprocessing.active_children()) - earlier:
                process.kill()
            if isinstance(error, OSError) and str(error) == "handle is closed":
                raise BrokenProcessPool("A worker was killed while another was being started.") from error
            raise


def _begin(initializer: Callable[[], None] | None) -> None:
    end_with_parent()
    if initializer:
        initializer()


def end_with_parent() -> None:
    """Makes this worker process exit as soon as its parent process ends.

    Call it once in a worker process of multiprocessing. Without it, the workers of a killed pool wait
    for tasks forever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "end_with_parent() was called outside a worker process"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
