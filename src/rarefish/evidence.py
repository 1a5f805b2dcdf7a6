"""What a posterior is learned from: the trusted images, and a sample of the pool for its mix of classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rarefish.errors import DataError, LabelError, list_some
from rarefish.features import watched
from rarefish.indices import draw_some
from rarefish.layers import device_of
from rarefish.reading import Data, Reader, check_labels

SAMPLE = 5_000
"""Pool images from which its mix of classes is estimated."""
MEMORY = 2_000_000_000
"""Bytes that the trusted images may take, and the sample too; of more, some are drawn …"""
FEWEST = 10
"""… but so many images in any case: with fewer in the validation set, nothing can be learned."""


@dataclass(frozen=True)
class Seen:
    """Images and what the model makes of them."""

    images: Float[Tensor, "T ..."]
    features: Float[Tensor, "T D"]


@dataclass(frozen=True)
class Evidence:
    """All of it in memory."""

    model: nn.Module
    """Where learning starts; copied, never changed."""
    trusted: Seen
    """The validation set, then the pool images that were bought."""
    labels: Int[Tensor, " T"]
    """Of the trusted images."""
    num_validation: int
    """The first so many are the validation set's; from what was bought the model has learned."""
    prior: Float[Tensor, " C"]
    """Shares of the classes in the validation set."""
    sample: Seen
    """Unlabeled images, drawn from the pool."""
    pool_size: int
    """Unlabeled images in all."""
    generator: torch.Generator = field(repr=False)
    device: torch.device
    """Where the copy learns."""
    progress: bool = False


def gather(
    model: nn.Module,
    layers: Sequence[str],
    validation: Data,
    pool: Data,
    left: Sequence[int],
    bought: Mapping[int, int],
    reader: Reader,
    generator: torch.Generator,
    device: torch.device | str | None = None,
    precision: str = "auto",
) -> Evidence:
    """The trusted images and a sample of the others, read into memory and shown to the model."""
    generator = torch.Generator().manual_seed(  # the caller's may live on a GPU
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
    )
    first = reader.first_images(validation)
    most = max(FEWEST, MEMORY // (first.numel() * 4))
    some = draw_some(most, len(validation), generator).tolist()
    trusted = list(reader.read(validation, some, title="reading validation", labels=True))
    own = list(
        reader.read(pool, list(bought)[: max(0, most - len(some))], title="reading what was bought", unreadable={})
    )
    drawn = draw_some(min(SAMPLE, most), len(left), generator).tolist()
    bad: dict[int, str] = {}
    sample = list(reader.read(pool, [left[row] for row in drawn], title="reading some of the pool", unreadable=bad))
    if not sample:
        raise DataError(f"None of {len(bad)} pool images can be read, such as {next(iter(bad.items()))}.")
    with torch.no_grad(), watched(model, layers, device, precision) as watch:
        num_classes = watch(first).logits_NC.shape[1]
        features = [[watch(batch.images).features_ND for batch in part] for part in ([*trusted, *own], sample)]
    for batch in trusted:
        check_labels(batch, num_classes)
    odd = sorted({label for label in bought.values() if not 0 <= label < num_classes})
    if odd:
        raise LabelError(f"bought has the labels {list_some(odd)}; the model's classes are 0 to {num_classes - 1}.")
    labels = torch.cat([batch.labels for batch in trusted if batch.labels is not None]).cpu()
    told = torch.tensor([bought[int(i)] for batch in own for i in batch.index], dtype=torch.long)
    return Evidence(
        model=model,
        trusted=Seen(torch.cat([batch.images for batch in [*trusted, *own]]), torch.cat(features[0])),
        labels=torch.cat([labels, told]),
        num_validation=len(labels),
        prior=labels.bincount(minlength=num_classes) / len(labels),
        sample=Seen(torch.cat([batch.images for batch in sample]), torch.cat(features[1])),
        pool_size=len(left),
        generator=generator,
        device=torch.device(device) if device is not None else device_of(model),
        progress=reader.progress,
    )
