"""What stays the same through all rounds of active learning, and where they stand."""

from dataclasses import dataclass, field

from torch import nn

from rarefish.acquisitions import Acquisition
from rarefish.active_learning.oracles import Oracle
from rarefish.active_learning.resume import UnderWay
from rarefish.data.reader import Data, Reader
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.training.loop import Training


@dataclass(frozen=True, kw_only=True)
class Task:
    """What stays the same through all rounds."""

    pool: Data
    validation: Data
    test: Data
    starts: tuple[nn.Module, ...]
    """The untrained model, or one for each member of an ensemble; never changed."""
    acquire: Acquisition
    oracle: Oracle
    budget: int
    num_classes: int
    name: str = "the acquisition"
    training: Training = field(default_factory=Training)
    warm: bool = False
    """Train on from the round before; cold (the default) trains every round from the start."""
    seed: int = 0
    batch_size: int = 1000
    workers: int = 0
    """Processes that read ahead where images are in files."""
    learns_validation: bool = False
    """The model learns from the validation set as well: what a skeptic would try first."""
    executor: Executor = field(default_factory=SingleProcess)
    """Who shares the work of choosing; all of them go through the same rounds."""
    peek: bool = False
    """Look at the test set after every epoch, to tell the best one: as the paper counts, not as we do."""
    under_way: UnderWay | None = None
    """Where a round that takes hours keeps what it has; needed only to go on after a kill."""

    @property
    def reader(self) -> Reader:
        """For passes that look at each image once."""
        return Reader(batch_size=min(1000, self.batch_size), num_workers=self.workers, progress=False)


@dataclass(frozen=True)
class State:
    """Where a task stands after some rounds: all that the next one needs."""

    number: int
    models: tuple[nn.Module, ...] = field(repr=False)
    labeled: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
