"""Images the model is least sure of. The validation set plays no part."""

import torch
from torch import Tensor

from rarefish.acquisitions.chance import choose_random
from rarefish.acquisitions.situation import Choice, Situation
from rarefish.features import evaluating
from rarefish.layers import device_of
from rarefish.reading import Reader


def choose_entropy(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Images whose predicted classes have the largest entropy; random ones while the model has seen no label."""
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    log_probability_NC = log_probabilities(situation)
    entropy_N = -(log_probability_NC.exp() * log_probability_NC).sum(dim=1)
    rows = entropy_N.argsort(descending=True, stable=True)[:budget]
    return Choice([situation.unlabeled[row] for row in rows.tolist()])


@torch.no_grad()
def log_probabilities(situation: Situation) -> Tensor:
    """The model's log-probabilities for every unlabeled image, in the order of `situation.unlabeled`."""
    device = device_of(situation.model)
    batches = Reader(batch_size=1000, progress=False).read(situation.pool, situation.unlabeled)
    with evaluating(situation.model):
        return torch.cat([situation.model(b.images.to(device)).log_softmax(dim=1).cpu() for b in batches])
