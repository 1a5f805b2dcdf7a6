"""Correction for label shift, since class proportions differ between the validation set and the pool."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

EM_STEPS = 100
RESAMPLINGS, RESAMPLED_EM_STEPS = 40, 50
"""Number of estimates from which an interval is computed, and EM steps of each, starting from the main estimate."""
HIGHEST_TEMPERATURE = 20.0
HALVINGS = 24
"""Number of bisection steps for the temperature, whose inverse is then exact to 6e-8."""


def class_weights(labels: Int[Tensor, " T"], prior: Float[Tensor, " C"]) -> Float[Tensor, " T"]:
    """Returns sampling weights that make classes as frequent as in the validation set, whatever was labeled."""
    counts = labels.bincount(minlength=len(prior)).clamp_min(1)
    weights = (prior.to(labels.device) / counts)[labels].double()
    return weights if weights.sum() > 0 else weights + 1


def estimate_prior(
    probability: Float[Tensor, "U C"],
    prior: Float[Tensor, " C"],
    floor: float,
    start: Float[Tensor, " C"] | None = None,
    steps: int = EM_STEPS,
) -> Float[Tensor, " C"]:
    """Returns the maximum-likelihood class proportions of images, given their posteriors under a different prior.

    Each step of expectation maximization reweights the posteriors by the ratio of the new to the old prior and averages
    them (Saerens et al., 2002). A class with an old prior of 0 has the proportion 0, because the posteriors
    contain no information about it.
    """
    floor = min(floor, 0.1 / len(prior))  # with a thousand classes, most proportions are less than one in a thousand
    share, is_known = (prior if start is None else start).clone(), prior > 0
    for _ in range(steps):
        ratio_C = torch.where(is_known, share / prior, 0)
        # The mean of the normalized rows of probability * ratio, as two products without a table in between.
        total_U = (probability @ ratio_C).clamp_min(1e-30)
        share = (ratio_C * (total_U.reciprocal() @ probability) / len(probability)).clamp_min(floor) * is_known
        share = share / share.sum()
    return share


def split_folds(labels: Int[Tensor, " V"], folds: int, generator: torch.Generator) -> Int[Tensor, " V"]:
    """Returns a random fold for each label, with each class spread evenly over the folds."""
    order = torch.randperm(len(labels), generator=generator)
    by_class = order[labels[order].argsort(stable=True)]
    fold = torch.empty_like(by_class)
    fold[by_class] = torch.arange(len(labels)) % folds
    return fold


def fit_temperature(logits: Float[Tensor, "V C"], labels: Int[Tensor, " V"]) -> float:
    """Returns the temperature (at least 1) at which the logits have the smallest cross-entropy.

    Below 1, the probabilities would become more confident, which a few labels that happen to be right do not justify.
    """
    low, high = 1 / HIGHEST_TEMPERATURE, 1.0  # bounds of the inverse temperature, in which the cross-entropy is convex
    for _ in range(HALVINGS):
        inverse = (low + high) / 2
        expected = ((inverse * logits).softmax(dim=1) * logits).sum()
        is_too_sure = bool(expected > logits.gather(1, labels[:, None]).sum())  # then the derivative is positive
        low, high = (low, inverse) if is_too_sure else (inverse, high)
    return 1 / high


def estimate_interval(
    logits: Sequence[Float[Tensor, "U C"]],
    known_logits: Float[Tensor, "V C"],
    known_labels: Int[Tensor, " V"],
    prior: Float[Tensor, " C"],
    estimate: Float[Tensor, " C"],
    floor: float,
    generator: torch.Generator,
) -> Float[Tensor, "2 C"]:
    """Returns lower and upper bounds of a probable range of the images' class proportions.

    Each of several estimates uses the logits of a random network on images drawn with replacement, at the temperature
    of known labels drawn with replacement. The bounds are the 2.5th and 97.5th percentiles, extended to include the
    estimate itself. Mistakes that all networks make are not included in the interval.
    """
    num_known, num_images, found = len(known_labels), len(logits[0]), [estimate]
    for _ in range(RESAMPLINGS):
        network = int(torch.randint(len(logits), (), generator=generator))
        known = torch.randint(num_known, (num_known,), generator=generator) if num_known else slice(0)
        rows = torch.randint(num_images, (num_images,), generator=generator)
        temperature = fit_temperature(known_logits[known], known_labels[known])
        probability = (logits[network][rows.to(estimate.device)] / temperature).softmax(dim=1)
        found.append(estimate_prior(probability, prior, floor, estimate, RESAMPLED_EM_STEPS))
    low, high = torch.stack(found).quantile(estimate.new_tensor([0.025, 0.975]), dim=0)
    return torch.stack([low.minimum(estimate), high.maximum(estimate)])
