"""Features of a pretrained network for the datasets of the field test, computed once and kept in a folder."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rarefish.data.arrays import Arrays
from rarefish.data.embeddings import Embeddings
from rarefish.errors import DataError
from rarefish.experiments.datasets import read_dataset
from rarefish.io import open_regular, replace_whole
from rarefish.models.efficientnet_lite import MEAN, NAME, STD, pretrained_backbone
from rarefish.ops.onnx_runtime import OnnxBackbone

LAYER, PIXELS = "avgpool", 128
"""The layer of EfficientNet-Lite0 with the features, and the height and width to which images are resized."""
BATCH_SIZE = 256
READ_AS = {"fashion": "fashion-mnist"}
"""Names in `experiments.datasets.DATASETS`, where they differ."""
LARGEST = {"fashion": (20_000, 4_000), "svhn": (24_000, 5_000)}
"""Number of training and test images of the large datasets; of each, the first images of a random order are used."""
ARRAYS = ("train_z", "train_y", "test_z", "test_y")
"""Names of the arrays in a file: the features in float16, and the labels."""


@lru_cache(maxsize=4)
def load_features(dataset: str, folder: Path) -> tuple[Embeddings, Embeddings]:
    """Returns the features of the training and test images of a dataset; computes them if the folder has no file."""
    path = folder / f"{dataset}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = dict(zip(ARRAYS, (array for part in _compute(dataset) for array in part), strict=True))
        replace_whole(path, lambda file: np.savez(file, **made))
    with open_regular(path) as file, np.load(file, allow_pickle=False) as content:
        missing = [name for name in ARRAYS if name not in content.files]
        if missing:
            raise DataError(f"{path} has no arrays {', '.join(missing)}. Delete it, so that it is computed again.")
        train_z, train_y, test_z, test_y = (content[name] for name in ARRAYS)
    return (
        Embeddings(train_z, labels=train_y, model=f"{NAME}-{LAYER}-{PIXELS}"),
        Embeddings(test_z, labels=test_y, model=f"{NAME}-{LAYER}-{PIXELS}"),
    )


def _compute(dataset: str) -> list[tuple[np.ndarray, np.ndarray]]:
    backbone = open_backbone()
    return [(features_of(part.images, backbone), part.labels.astype(np.int64)) for part in images_of(dataset)]


def images_of(dataset: str) -> list[Arrays]:
    """Returns the training and test images whose features are used."""
    parts, largest = read_dataset(READ_AS.get(dataset, dataset)), LARGEST.get(dataset, (None, None))
    return [first_of_random_order(part, count) for part, count in zip(parts, largest, strict=True)]


def open_backbone() -> OnnxBackbone:
    """Returns EfficientNet-Lite0 with ImageNet weights, run by ONNX Runtime with as many threads as torch uses."""
    model = pretrained_backbone(2, 3, torch.Generator().manual_seed(0)).eval()  # the classifier is not used
    example = torch.randn(8, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0))
    return OnnxBackbone(model, LAYER, example, backend="onnx")


def first_of_random_order(images: Arrays, count: int | None) -> Arrays:
    """Returns the first `count` images of a random order that is always the same, or all images in their own order."""
    if count is None or len(images) <= count:
        return images
    return images[np.random.default_rng(0).permutation(len(images))[:count]]


def features_of(images: np.ndarray, backbone: OnnxBackbone) -> np.ndarray:
    """Returns the features of images (N, height, width, 1 or 3) in float16."""
    blocks = (images[first : first + BATCH_SIZE] for first in range(0, len(images), BATCH_SIZE))
    return np.concatenate([backbone(preprocessed(block)).half().numpy() for block in blocks])


def preprocessed(images: np.ndarray) -> Tensor:
    """Returns images as the network expects them: three colors, normalized, and then resized bilinearly."""
    scaled = torch.from_numpy(np.ascontiguousarray(images)).float().div(255).movedim(3, 1).expand(-1, 3, -1, -1)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    normalized = (scaled - mean) / std
    if normalized.shape[-2:] != (PIXELS, PIXELS):
        normalized = interpolate(normalized, (PIXELS, PIXELS), mode="bilinear", align_corners=False)
    return normalized.contiguous()
