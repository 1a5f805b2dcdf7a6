"""How to run a model: device, batch size, worker processes and progress bars."""

from dataclasses import dataclass

import torch

from rarefish.data.reader import Reader
from rarefish.distributed import torchrun as distributed
from rarefish.errors import ArgumentError


@dataclass(frozen=True)
class Running:
    """How to run a model: device, batch size, worker processes and progress bars."""

    device: str = "auto"
    batch_size: int = 256
    workers: int = 2
    shard: int = 20_000
    progress: bool = True

    def reader(self) -> Reader:
        return Reader(batch_size=self.batch_size, num_workers=self.workers, progress=self.progress)

    def torch_device(self) -> torch.device:
        """Returns the device; `auto` is a GPU if there is one."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return check_device(self.device)

    def join_processes(self) -> torch.device:
        """Joins the other processes of torchrun, if there are any, and returns the device of this process."""
        assigned = distributed.join()
        return assigned if self.device == "auto" else check_device(self.device)


def check_device(name: str) -> torch.device:
    """Returns the device with this name, or raises ArgumentError if it cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:
        raise ArgumentError(f"The device {name!r} is not available: {str(error).splitlines()[0]}") from error
    return device
