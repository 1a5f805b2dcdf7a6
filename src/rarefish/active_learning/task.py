"""The fixed part of an active learning run, `Task`, and its changing part, `State`."""

from dataclasses import dataclass, field

from torch import nn

from rarefish.acquisitions import Acquisition
from rarefish.active_learning.oracles import Oracle
from rarefish.active_learning.resume import RoundFiles
from rarefish.data.reader import Data, Reader
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.training.loop import Training


@dataclass(frozen=True, kw_only=True)
class Task:
    """The data sets and settings that are the same for all rounds."""

    pool: Data
    validation: Data
    test: Data
    starts: tuple[nn.Module, ...]
    """The untrained model, or one per member of an ensemble. They are copied, never changed."""
    acquire: Acquisition
    oracle: Oracle
    budget: int
    num_classes: int
    name: str = "the acquisition"
    training: Training = field(default_factory=Training)
    warm: bool = False
    """Start each training from the weights of the previous round instead of the untrained model."""
    seed: int = 0
    batch_size: int = 1000
    workers: int = 0
    """Number of worker processes that load images from files."""
    learns_validation: bool = False
    """Train on the validation set as well, as a baseline."""
    executor: Executor = field(default_factory=SingleProcess)
    """The executor that splits the selection over processes. All processes run the same rounds."""
    peek: bool = False
    """Evaluate on the test set after every epoch and report the best epoch, as in the paper."""
    round_files: RoundFiles | None = None
    """Files from which an interrupted round resumes; None to keep nothing."""

    @property
    def reader(self) -> Reader:
        """The reader for passes over a data set without training."""
        return Reader(batch_size=min(1000, self.batch_size), num_workers=self.workers, progress=False)


@dataclass(frozen=True)
class State:
    """The models and labels after a number of rounds: everything that the next round needs."""

    number: int
    models: tuple[nn.Module, ...] = field(repr=False)
    labeled: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
