"""Images the model is least sure of. The validation set plays no part."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.dropout import sampling
from rarefish.acquisitions.interface import Choice, Situation, take_largest
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.models.layers import casting, device_of

SMALLEST = 1e-12
"""Under a logarithm."""

Statistic = Callable[[Float[Tensor, "T N C"]], Float[Tensor, " N"]]
"""Probabilities of T answers (samples of all members) -> how unsure they are about each image."""


def least_confidence(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """One minus the largest mean probability."""
    return 1 - p.mean(dim=0).amax(dim=1)


def margin(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """How little the first class is ahead of the second."""
    return p.mean(dim=0).topk(2, dim=1).values.diff(dim=1).squeeze(1)


def entropy(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Entropy of the mean probabilities, in nats."""
    return _entropy(p.mean(dim=0))


def variation_ratio(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Share of the answers that differ from the most frequent one."""
    votes = torch.nn.functional.one_hot(p.argmax(dim=2), p.shape[2]).sum(dim=0)
    return 1 - votes.amax(dim=1).to(p.dtype) / len(p)


def bald(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Mutual information of answer and weights: entropy of the mean less the mean entropy (Houlsby et al., 2011)."""
    return _entropy(p.mean(dim=0)) - _entropy(p).mean(dim=0)


def mean_std(p: Float[Tensor, "T N C"]) -> Float[Tensor, " N"]:
    """Standard deviation of each class's probability over the answers, mean over classes."""
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
    """Images with the largest statistic over all members, each with `samples` passes under dropout (1: without).

    Random images while no model has seen a label: the sureness of an untrained classifier says nothing.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    values = uncertainties(situation, STATISTICS[statistic], samples, generator)
    passes = len(situation.unlabeled) * samples * len(situation.models)
    return take_largest(situation, values, budget, generator, passes)


@torch.no_grad()
def uncertainties(situation: Situation, statistic: Statistic, samples: int, generator: torch.Generator) -> Tensor:
    """The statistic of every unlabeled image, a few at a time: never all samples of all images."""
    device = device_of(situation.model)
    masks = torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    values = []
    with ExitStack() as around:
        members = [around.enter_context(sampling(model, samples, masks)) for model in situation.models]
        for batch in situation.reader.read(situation.pool, situation.unlabeled):
            for images in batch.images.to(device).split(max(1, 4 * situation.batch_size // samples)):
                with casting(device, situation.precision):
                    answers = torch.cat([answer(images).float() for answer in members])
                values.append(statistic(answers.softmax(dim=2)))
    return torch.cat(values).cpu()


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp_min(SMALLEST).log()).sum(dim=-1)
