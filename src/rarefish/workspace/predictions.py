"""Class probabilities of workspace images, and an estimate of the pool's class mix."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rarefish.data.index_set import draw_some
from rarefish.data.reader import Reader
from rarefish.errors import DataError, list_some
from rarefish.models.layers import device_of, dtype_of, evaluating
from rarefish.pseudo_labels.label_shift import estimate_prior
from rarefish.workspace.images import WorkspaceImages

SAMPLE = 2_000
"""Pool images from which its mix of classes is estimated."""
SHOWN = 5
"""Classes whose probabilities an annotator sees."""
RAREST = 1e-3
"""Lower bound for the share of a class."""


def class_probabilities(
    model: nn.Module,
    data: WorkspaceImages,
    rows: Sequence[int],
    reader: Reader,
    unreadable: dict[int, str] | None = None,
) -> Tensor:
    """The model's class probabilities for these rows; with `unreadable`, images that cannot be read are left out."""
    device, dtype, found = device_of(model), dtype_of(model), []
    with torch.no_grad(), evaluating(model):
        for batch in reader.read(data, list(rows), title="predicting", unreadable=unreadable):
            found.append(model(batch.images.to(device, dtype)).float().softmax(dim=1).cpu())
    if not found:
        raise DataError(f"None of {len(rows)} images can be read. {list_some((unreadable or {}).values(), 1)}")
    return torch.cat(found)


def pool_mix(model: nn.Module, pool: WorkspaceImages, trusted: WorkspaceImages, reader: Reader) -> list[float]:
    """Class shares of the pool, estimated from the model's predictions on a sample."""
    rows = draw_some(min(SAMPLE, len(pool)), len(pool), torch.Generator().manual_seed(0)).tolist()
    probabilities = class_probabilities(model, pool, rows, reader, unreadable={})
    prior = torch.tensor(class_counts(trusted, probabilities.shape[1])).float().clamp_min(RAREST)
    return estimate_prior(probabilities, prior / prior.sum(), RAREST).tolist()


def top_classes(probabilities: Tensor) -> tuple[tuple[int, float], ...]:
    """The most probable classes, each with its probability."""
    best = probabilities.topk(min(SHOWN, len(probabilities)))
    return tuple(zip(best.indices.tolist(), [round(value, 4) for value in best.values.tolist()], strict=True))


def class_counts(data: WorkspaceImages, num_classes: int) -> list[int]:
    """The number of images per class."""
    return torch.tensor(data.labels).bincount(minlength=num_classes).tolist()
