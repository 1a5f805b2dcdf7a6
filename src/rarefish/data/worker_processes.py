"""Worker processes that end with the process that started them, even if it was killed."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Call this once in a worker process of multiprocessing: it exits as soon as the process that made it is gone.

    Without it, the workers of a killed pool wait for tasks forever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "called outside of a worker process"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
