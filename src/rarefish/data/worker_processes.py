"""End worker processes together with the process that started them, even if it was killed."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Make this worker process exit as soon as its parent process is gone.

    Call it once in a worker process of multiprocessing. Without it, the workers of a killed pool wait
    for tasks forever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "end_with_parent() was called outside of a worker process"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
