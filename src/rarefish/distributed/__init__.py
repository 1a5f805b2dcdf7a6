"""Selection distributed over several processes or machines."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.distributed.executor import Executor, Plan, ShardMatches, SingleProcess
    from rarefish.distributed.torchrun import TorchrunExecutor, join, leave, num_ranks, rank

__all__ = [
    "Executor",
    "Plan",
    "ShardMatches",
    "SingleProcess",
    "TorchrunExecutor",
    "join",
    "leave",
    "num_ranks",
    "rank",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "executor": ("Executor", "Plan", "ShardMatches", "SingleProcess"),
        "torchrun": ("TorchrunExecutor", "join", "leave", "num_ranks", "rank"),
    },
)
