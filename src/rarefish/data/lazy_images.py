"""Training images that are read from disk batch by batch instead of being kept in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarefish.data.reader import Batch, Data, Reader


@dataclass(frozen=True)
class Stored:
    """A subset of a dataset in a given order, which training accepts instead of a tensor of images."""

    data: Data
    index: Sequence[int]
    """The position of each image in the dataset."""
    workers: int = 0
    """Number of worker processes that prefetch batches."""
    unreadable: dict[int, str] | None = None
    """Collects images that cannot be read, with the reasons. If None, such images raise DataError."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> torch.Size:
        """The shape that all images would have as one tensor."""
        return torch.Size([len(self), *Reader().one(self.data, self.index[0]).shape[1:]])

    def read(self, parts: Sequence[Tensor], title: str = "") -> Iterator[Batch]:
        """Returns an iterator over batches, one per part; `title` is the title of the progress bar."""
        sizes = [len(rows) for rows in parts]
        index = [self.index[row] for rows in parts for row in rows.tolist()]
        reader = Reader(num_workers=self.workers, progress=bool(title))
        return reader.read(self.data, index, title=title, unreadable=self.unreadable, sizes=sizes)


Images = Tensor | Stored


def read_parts(images: Images, parts: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    """Returns an iterator over the images of each part; stored images are moved to the device and dtype."""
    if isinstance(images, Tensor):
        return (images[rows] for rows in parts)
    return (batch.images.to(device, dtype, non_blocking=True) for batch in images.read(parts))
