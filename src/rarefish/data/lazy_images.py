"""Training images that are read from disk batch by batch instead of being held in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarefish.data.reader import Data, Reader


@dataclass(frozen=True)
class Stored:
    """A subset of a data set in a given order, which training accepts in place of a tensor of images."""

    data: Data
    index: Sequence[int]
    """The position of each image in the data set."""
    workers: int = 0
    """Number of worker processes that prefetch batches."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> torch.Size:
        """The shape that all images would have as one tensor."""
        return torch.Size([len(self), *Reader().one(self.data, self.index[0]).shape[1:]])

    def read(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """Return an iterator over batches: the images at the rows of each part."""
        sizes = [len(rows) for rows in parts]
        index = [self.index[row] for rows in parts for row in rows.tolist()]
        reader = Reader(num_workers=self.workers, progress=False)
        return (batch.images for batch in reader.read(self.data, index, sizes=sizes))


Images = Tensor | Stored


def read_parts(images: Images, parts: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    """Return an iterator over the images at the rows of each part; stored images are moved to the device and dtype."""
    if isinstance(images, Tensor):
        return (images[rows] for rows in parts)
    return (batch.to(device, dtype, non_blocking=True) for batch in images.read(parts))
