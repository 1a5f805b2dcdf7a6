"""What a model takes images to be, and what that says about the pool's mix of classes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rarefish.data.index_set import draw_some
from rarefish.data.reader import Reader
from rarefish.errors import DataError, list_some
from rarefish.models.layers import device_of, dtype_of, evaluating
from rarefish.pseudo_labels.label_shift import estimate_prior
from rarefish.workspace.images import Shelf

SAMPLE = 2_000
"""Pool images from which its mix of classes is estimated."""
SHOWN = 5
"""Classes whose chances an annotator sees."""
RAREST = 1e-3
"""A class that is not seen at all is taken to be this rare."""


def answer_chances(
    model: nn.Module, data: Shelf, rows: Sequence[int], reader: Reader, unreadable: dict[int, str] | None = None
) -> Tensor:
    """How likely the model takes each class to be, for some images; where a dict is given, without unreadable ones."""
    device, dtype, found = device_of(model), dtype_of(model), []
    with torch.no_grad(), evaluating(model):
        for batch in reader.read(data, list(rows), title="asking the model", unreadable=unreadable):
            found.append(model(batch.images.to(device, dtype)).float().softmax(dim=1).cpu())
    if not found:
        raise DataError(f"None of {len(rows)} images can be read. {list_some((unreadable or {}).values(), 1)}")
    return torch.cat(found)


def pool_mix(model: nn.Module, pool: Shelf, trusted: Shelf, reader: Reader) -> list[float]:
    """Shares of the classes in the pool, as the model's answers on some of it tell."""
    rows = draw_some(min(SAMPLE, len(pool)), len(pool), torch.Generator().manual_seed(0)).tolist()
    chance = answer_chances(model, pool, rows, reader, unreadable={})
    prior = torch.tensor(class_counts(trusted, chance.shape[1])).float().clamp_min(RAREST)
    return estimate_prior(chance, prior / prior.sum(), RAREST).tolist()


def likeliest(chance: Tensor) -> tuple[tuple[int, float], ...]:
    best = chance.topk(min(SHOWN, len(chance)))
    return tuple(zip(best.indices.tolist(), [round(value, 4) for value in best.values.tolist()], strict=True))


def class_counts(data: Shelf, num_classes: int) -> list[int]:
    return torch.tensor(data.labels).bincount(minlength=num_classes).tolist()
