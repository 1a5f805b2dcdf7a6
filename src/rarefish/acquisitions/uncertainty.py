"""Acquisitions based on predictive uncertainty, which do not use the validation set."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.dropout import mc_dropout
from rarefish.acquisitions.interface import Choice, Situation, take_largest
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.models.layer_selection import casting, device_of

MIN_PROBABILITY = 1e-12
"""Lower bound for a probability inside a logarithm."""

Statistic = Callable[[Float[Tensor, "T N C"]], Float[Tensor, " N"]]
"""Function that maps the class probabilities of T predictions (samples of all members) to one value per image."""


def least_confidence(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Returns 1 minus the largest mean probability."""
    return 1 - p.mean(dim=0).amax(dim=1)


def margin(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Returns the negative margin: the second largest mean probability minus the largest."""
    return p.mean(dim=0).topk(2, dim=1).values.diff(dim=1).squeeze(1)


def entropy(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Returns the entropy of the mean probabilities, in nats."""
    return _entropy(p.mean(dim=0))


def variation_ratio(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Returns the fraction of predictions that differ from the most frequent one."""
    votes = torch.nn.functional.one_hot(p.argmax(dim=2), p.shape[2]).sum(dim=0)
    return 1 - votes.amax(dim=1).to(p.dtype) / len(p)


def bald(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Returns the mutual information between label and weights (Houlsby et al., 2011).

    It is the entropy of the mean probabilities minus the mean entropy.
    """
    return _entropy(p.mean(dim=0)) - _entropy(p).mean(dim=0)


def mean_std(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Returns the standard deviation of each class probability over the predictions, averaged over classes."""
    return p.std(dim=0, correction=0).mean(dim=1)


STATISTICS: dict[str, Statistic] = {
    "least_confidence": least_confidence,
    "margin": margin,
    "entropy": entropy,
    "variation_ratio": variation_ratio,
    "bald": bald,
    "mean_std": mean_std,
}


def choose_uncertain(
    situation: Situation, budget: int, generator: torch.Generator, *, statistic: str, samples: int = 1
) -> Choice:
    """Chooses the images with the largest statistic over the samples of all members.

    Each member predicts with `samples` dropout masks, or without dropout if `samples` is 1. The first round is random,
    because the uncertainty of an untrained classifier carries no information.
    """
    if not situation.is_trained:
        return choose_random(situation, budget, generator)
    values = uncertainties(situation, STATISTICS[statistic], samples, generator)
    passes = len(situation.unlabeled) * samples * len(situation.models)
    return take_largest(situation, values, budget, generator, passes)


@torch.no_grad()
def uncertainties(situation: Situation, statistic: Statistic, samples: int, generator: torch.Generator) -> Tensor:
    """Returns the statistic of every unlabeled image, computed in batches to bound the memory for images × samples."""
    device = device_of(situation.model)
    masks = torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    values = []
    with ExitStack() as stack:
        members = [stack.enter_context(mc_dropout(model, samples, masks)) for model in situation.models]
        for batch in situation.reader.read(situation.pool, situation.unlabeled):
            for images in batch.images.to(device).split(max(1, 4 * situation.batch_size // samples)):
                with casting(device, situation.precision):
                    logits_TNC = torch.cat([predict(images).float() for predict in members])
                values.append(statistic(logits_TNC.softmax(dim=2)))
    return torch.cat(values).cpu()


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp_min(MIN_PROBABILITY).log()).sum(dim=-1)
