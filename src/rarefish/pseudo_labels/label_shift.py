"""The mix of classes under which a posterior is learned, and the mix in which it is used."""

from jaxtyping import Float, Int
from torch import Tensor

EM_STEPS = 100


def class_weights(labels: Int[Tensor, " T"], prior: Float[Tensor, " C"]) -> Float[Tensor, " T"]:
    """Chances to be drawn by which the classes come as often as in the validation set, whatever was bought."""
    counts = labels.bincount(minlength=len(prior)).clamp_min(1)
    weights = (prior.to(labels.device) / counts)[labels].double()
    return weights if weights.sum() > 0 else weights + 1


def estimate_prior(probability: Float[Tensor, "U C"], prior: Float[Tensor, " C"], floor: float) -> Float[Tensor, " C"]:
    """The shares of the classes under which the images are most likely, given their posteriors under another prior.

    Each step weighs the posteriors by the new prior over the old one and takes their mean (Saerens et al., 2002).
    """
    floor = min(floor, 0.1 / len(prior))  # of a thousand classes, most are rarer than one in a thousand
    share = prior.clone()
    for _ in range(EM_STEPS):
        weighed = probability * (share / prior)
        share = (weighed / weighed.sum(dim=1, keepdim=True)).mean(dim=0).clamp_min(floor)
        share = share / share.sum()
    return share
