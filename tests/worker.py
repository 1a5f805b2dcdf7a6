"""One process of several, started by tests/distributed/test_torchrun.py: chooses from a pool and writes its choice."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from rarefish import select
from rarefish.distributed import torchrun as distributed
from tests.cases import IMAGE, NUM_CLASSES, Plain

torch.set_num_threads(1)


class Slow(TensorDataset):
    """A pool that is looked at slowly, so that there is time to kill; it counts what was read."""

    def __init__(self, *tensors: torch.Tensor, folder: Path, seconds: float) -> None:
        super().__init__(*tensors)
        self.folder, self.seconds = folder, seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        with (self.folder / f"read-{os.getpid()}").open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


def parts(num_pool: int) -> tuple[torch.Tensor, TensorDataset]:
    generator = torch.Generator().manual_seed(3)
    validation = TensorDataset(torch.randn(30, *IMAGE, generator=generator), torch.arange(30) % NUM_CLASSES)
    return torch.randn(num_pool, *IMAGE, generator=generator), validation


def main() -> None:
    folder, labels, seconds, num_pool, shard_size = sys.argv[1:]
    images, validation = parts(int(num_pool))
    pool = Slow(images, folder=Path(folder), seconds=float(seconds))
    torch.manual_seed(0)
    model = Plain().double()
    device = distributed.join()
    executor = distributed.TorchrunExecutor(
        model=model, device=device, folder=Path(folder) / "shards", settings=labels, shard_size=int(shard_size)
    )
    chosen = select(model, pool, validation, budget=12, labels=labels, batch_size=4, device=device, executor=executor)
    (Path(folder) / f"picks-{distributed.rank()}-of-{distributed.num_ranks()}").write_text(str(chosen.rows()))
    torch.save(chosen.class_probabilities, Path(folder) / f"classes-{distributed.rank()}.pt")
    distributed.leave()
    left = [name.read_text() for name in Path("/proc/self/task").glob("*/comm") if "gloo" in name.read_text()]
    assert not left, f"threads of the group outlive it and may abort the process at its end: {left}"


if __name__ == "__main__":
    main()
