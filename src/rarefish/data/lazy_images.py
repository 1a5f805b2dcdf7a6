"""Images to learn from that are not in memory: they are read batch by batch, when their turn comes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarefish.data.reader import Data, Reader


@dataclass(frozen=True)
class Stored:
    """Some images of a data set, in an order of their own: what a training takes in place of a tensor."""

    data: Data
    index: Sequence[int]
    """Where each is in the data set."""
    workers: int = 0
    """Processes that read ahead."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> torch.Size:
        """Of all of them, were they one tensor."""
        return torch.Size([len(self), *Reader().one(self.data, self.index[0]).shape[1:]])

    def read(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images at each part's rows, one batch after another."""
        sizes = [len(rows) for rows in parts]
        index = [self.index[row] for rows in parts for row in rows.tolist()]
        reader = Reader(num_workers=self.workers, progress=False)
        return (batch.images for batch in reader.read(self.data, index, sizes=sizes))


Images = Tensor | Stored


def read_parts(images: Images, parts: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    """The images at each part's rows, on the device; stored ones get the type of numbers that the model has."""
    if isinstance(images, Tensor):
        return (images[rows] for rows in parts)
    return (batch.to(device, dtype, non_blocking=True) for batch in images.read(parts))
