"""Images and labels as arrays in memory, and readers for IDX (MNIST), .mat (SVHN) and .npz files."""

import gzip
import math
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from rarefish.errors import DataError
from rarefish.io import open_regular

MAX_GZIP_RATIO = 1_100
"""Upper bound on the compression ratio of a gzip file."""


@dataclass(frozen=True)
class Arrays:
    """N images (N, height, width, channels) as uint8, with their labels."""

    images: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"There are {len(self.images)} images, but {len(self.labels)} labels.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: np.ndarray) -> "Arrays":
        return Arrays(self.images[rows], self.labels[rows])

    def with_junk(self, count: int, seed: int) -> "Arrays":
        """Returns these images plus `count` images of no class (label -1), each composed of quarters of four others."""
        rng = np.random.default_rng(seed)
        height, width = self.images.shape[1] // 2, self.images.shape[2] // 2
        junk = self.images[rng.integers(len(self), size=count)].copy()
        for rows in (slice(None, height), slice(height, None)):
            for columns in (slice(None, width), slice(width, None)):
                others = rng.integers(len(self), size=count)
                junk[:, rows, columns] = self.images[others][:, rows, columns]
        labels = np.concatenate([self.labels.astype(np.int64), np.full(count, -1)])
        return Arrays(np.concatenate([self.images, junk]), labels)

    def to_tensors(self, device: torch.device | str = "cpu") -> TensorDataset:
        """Returns images (N, channels, height, width) with values from 0 to 1, and their labels."""
        images = torch.tensor(self.images).to(device).movedim(3, 1).float().div_(255)
        return TensorDataset(images.contiguous(), torch.from_numpy(self.labels.astype(np.int64)).to(device))


@dataclass(frozen=True)
class Pixels:
    """Images stored as uint8, which takes a quarter of the memory of floats, and scaled when accessed.

    All subsets of a dataset share its bytes.
    """

    bytes: Tensor
    """All images of the dataset (N, height, width, channels), as uint8."""
    rows: Tensor
    """Positions in `bytes` of the images in this subset."""
    labels: Tensor
    mean: Tensor
    """Mean of each channel, on a scale of 0 to 1."""
    deviation: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> list[int]:
        return self.labels.tolist()

    def take(self, rows: Tensor) -> Tensor:
        """Returns the given images (N, channels, height, width), scaled, on the device of the bytes."""
        own = self.bytes[self.rows[rows].to(self.bytes.device)].float().div_(255)
        return own.sub_(self.mean).div_(self.deviation).movedim(3, 1).contiguous()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.take(torch.tensor([index]))[0], int(self.labels[index])


def scale_of(images: np.ndarray, rows: np.ndarray, chunk_size: int = 10_000) -> tuple[Tensor, Tensor]:
    """Returns the mean and standard deviation of the given images per channel, on a scale of 0 to 1.

    They are computed from histograms, so that the images are not copied as floats.
    """
    counts_CV = np.zeros((images.shape[3], 256), dtype=np.int64)
    for first in range(0, len(rows), chunk_size):
        some = images[rows[first : first + chunk_size]]
        counts_CV += np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(some, 3, 0)])
    value_V, total = np.arange(256) / 255, counts_CV.sum(axis=1)
    mean_C = counts_CV @ value_V / total
    variance_C = (counts_CV * (value_V - mean_C[:, None]) ** 2).sum(axis=1) / (total - 1)
    deviation_C = np.sqrt(variance_C).clip(min=1e-6)
    return torch.tensor(mean_C, dtype=torch.float32), torch.tensor(deviation_C, dtype=torch.float32)


def normalized(parts: list[TensorDataset]) -> list[TensorDataset]:
    """Returns the datasets with each channel standardized by its mean and variance in the first of them."""
    first = parts[0].tensors[0]
    mean = first.mean(dim=(0, 2, 3), keepdim=True)
    deviation = first.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-6)
    return [TensorDataset((part.tensors[0] - mean) / deviation, *part.tensors[1:]) for part in parts]


def read_idx(images: Path, labels: Path) -> Arrays:
    """Reads MNIST or Fashion-MNIST in the original format (IDX), gzipped or not."""
    pixels, numbers = _read_idx(images, dimensions=3), _read_idx(labels, dimensions=1)
    return Arrays(pixels[..., None], numbers)


def read_svhn(path: Path) -> Arrays:
    """Reads SVHN's cropped digits in the original format (.mat); its label 10 is the digit 0."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError("Reading .mat files needs SciPy: pip install scipy.") from error
    with open_regular(path) as file, _naming_file(path, "an SVHN file"):
        content = loadmat(file)
        images, labels = (np.asarray(content[name]) for name in ("X", "y"))
        images = _checked_images(images.transpose(3, 0, 1, 2), path)
    return Arrays(np.ascontiguousarray(images), flat_labels(labels.T if len(labels) == 1 else labels, path) % 10)


def read_npz(path: Path, images: str = "images", labels: str = "labels") -> Arrays:
    """Reads images and labels from an .npz file; the channel axis of grayscale images may be missing."""
    with open_regular(path) as file, _naming_file(path, "an .npz file"), np.load(file, allow_pickle=False) as content:
        missing = [name for name in (images, labels) if name not in content]
        if missing:
            raise DataError(f"{path} has no array {missing[0]!r}, only {', '.join(content)}.")
        pixels, numbers = content[images], content[labels]
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    return Arrays(_checked_images(pixels, path), flat_labels(numbers, path))


def flat_labels(labels: np.ndarray, path: Path) -> np.ndarray:
    """Returns labels of shape (N,), given as (N,) or (N, 1); raises DataError for other shapes and non-integers."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer):
        raise DataError(
            f"{path}: the labels are {labels.dtype} {labels.shape}, but must be one integer per image (N,)."
        )
    return flat


def _checked_images(images: np.ndarray, path: Path) -> np.ndarray:
    if images.ndim != 4 or images.dtype != np.uint8 or 0 in images.shape[1:]:
        raise DataError(
            f"{path}: the images are {images.dtype} {images.shape}, but must be uint8 (N, height, width, channels)."
        )
    return images


@contextmanager
def _naming_file(path: Path, kind: str) -> Iterator[None]:
    """Turns any error in the block into a DataError that names the file.

    NumPy and SciPy raise almost any exception for a damaged file.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = "there is not enough memory for it" if isinstance(error, MemoryError) else str(error)
        raise DataError(f"{path} is damaged or not {kind}: {reason}. Download it again.") from error


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads an IDX file: two zeros, the type (8 for bytes), the number of dimensions, their sizes, and the bytes."""
    start = 4 + 4 * dimensions
    with ExitStack() as opened, _naming_file(path, "an IDX file"):
        file = opened.enter_context(open_regular(path))
        most = MAX_GZIP_RATIO * os.fstat(file.fileno()).st_size
        if path.suffix == ".gz":
            file = opened.enter_context(gzip.GzipFile(fileobj=file))
        head = file.read(start)
        if len(head) < start or head[:4] != bytes([0, 0, 8, dimensions]):
            raise DataError(f"{path} is not an IDX file of bytes with {dimensions} dimensions.")
        shape = struct.unpack(f">{dimensions}I", head[4:])
        expected = math.prod(shape)
        # Read no more than the header promises, and nothing at all if the file is too small for it.
        content = file.read(expected + 1) if expected <= most else b""
    if len(content) != expected:
        sizes = " × ".join(map(str, shape))
        if len(content) > expected:
            raise DataError(f"{path} is too long: it contains more than {expected:,} bytes for {sizes}.")
        raise DataError(f"{path} is truncated: {len(content):,} bytes for {sizes}.")
    return np.frombuffer(content, np.uint8).reshape(shape)
