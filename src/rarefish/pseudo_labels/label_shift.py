"""Correction for label shift: class proportions differ between the validation set and the pool."""

from jaxtyping import Float, Int
from torch import Tensor

EM_STEPS = 100


def class_weights(labels: Int[Tensor, " T"], prior: Float[Tensor, " C"]) -> Float[Tensor, " T"]:
    """Returns sampling weights under which classes occur as often as in the validation set, whatever was labeled."""
    counts = labels.bincount(minlength=len(prior)).clamp_min(1)
    weights = (prior.to(labels.device) / counts)[labels].double()
    return weights if weights.sum() > 0 else weights + 1


def estimate_prior(probability: Float[Tensor, "U C"], prior: Float[Tensor, " C"], floor: float) -> Float[Tensor, " C"]:
    """Returns the maximum-likelihood class proportions of the images, given their posteriors under another prior.

    Each step of expectation maximization reweights the posteriors by the ratio of new to old prior and takes their mean
    (Saerens et al., 2002).
    """
    floor = min(floor, 0.1 / len(prior))  # with a thousand classes, most proportions are below one in a thousand
    share = prior.clone()
    for _ in range(EM_STEPS):
        weighed = probability * (share / prior)
        share = (weighed / weighed.sum(dim=1, keepdim=True)).mean(dim=0).clamp_min(floor)
        share = share / share.sum()
    return share
