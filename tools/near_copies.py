"""Cosine similarities of photographs with re-encoded and resized copies of themselves, and with other photographs.

    python tools/near_copies.py DATA/caltech_100 [--size 224] [--photos 3000] [--copies 300]

Prints, for each kind of copy, the share that is found at several thresholds, and for pairs of different photographs,
how many are taken for copies. DATA is the folder with load.py, which decodes the photographs.
"""

import argparse
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from rarefish.data.image_files import scale
from rarefish.models.efficientnet_lite import MEAN, STD
from rarefish.models.loading import load_model
from rarefish.ops.onnx_runtime import OnnxBackbone

THRESHOLDS = (0.85, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96, 0.98)


def encoded(picture: Image.Image, quality: int) -> Image.Image:
    """Returns the picture after a JPEG encoder of this quality."""
    file = BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def resized(picture: Image.Image, factor: float) -> Image.Image:
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.LANCZOS)


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG, quality 90": lambda picture: encoded(picture, 90),
    "JPEG, quality 75": lambda picture: encoded(picture, 75),
    "JPEG, quality 50": lambda picture: encoded(picture, 50),
    "resized to 150 %": lambda picture: resized(picture, 1.5),
    "resized to 75 %": lambda picture: resized(picture, 0.75),
    "resized to 75 %, JPEG, quality 75": lambda picture: encoded(resized(picture, 0.75), 75),
    "resized to 50 %": lambda picture: resized(picture, 0.5),
}


def embed_pictures(pictures: list[Image.Image], size: int) -> Tensor:
    """Returns the embeddings of the pictures."""
    pixels = np.stack([np.asarray(p.resize((size, size), Image.Resampling.BILINEAR)) for p in pictures])
    batches = [scale(part.permute(0, 3, 1, 2) / 255, MEAN, STD) for part in torch.from_numpy(pixels).split(64)]
    backbone = OnnxBackbone(load_model("efficientnet-lite0", 2, 3).eval(), "avgpool", batches[0])
    return torch.cat([backbone(images) for images in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--copies", type=int, default=300)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.data.parent))
    from load import load  # pyright: ignore[reportMissingImports]

    content: dict[str, Any] = load(arguments.data.name)
    rows = np.random.default_rng(0).permutation(len(content["train_x"]))[: arguments.photos]
    photos = [Image.fromarray(content["train_x"][row]) for row in rows]
    embedded = embed_pictures(photos, arguments.size)
    mean = embedded.mean(dim=0)
    originals = normalize(embedded - mean, dim=1)
    print(f"{arguments.size}×{arguments.size}".ljust(36), *(f"≥ {t:.2f}" for t in THRESHOLDS), " 1 %   median")
    for name, change in COPIES.items():
        some = photos[: arguments.copies]
        copies = normalize(embed_pictures([change(photo) for photo in some], arguments.size) - mean, dim=1)
        cosine = (copies * originals[: len(some)]).sum(dim=1)
        found = [f"{float((cosine >= t).float().mean()):6.1%}" for t in THRESHOLDS]
        print(name.ljust(36), *found, f" {float(cosine.quantile(0.01)):.3f} {float(cosine.median()):.3f}", flush=True)
    cosines = (originals @ originals.T).triu(1)
    labels = torch.from_numpy(content["train_y"][rows].astype(np.int64))
    is_other = labels[:, None] != labels
    for name, among in (("pairs of photographs", cosines), ("pairs of different classes", cosines * is_other)):
        print(name.ljust(36), *(f"{int((among >= t).sum()):6d}" for t in THRESHOLDS))


if __name__ == "__main__":
    main()
