"""Weights of pool images: how much more frequent they are in the validation set, and how little the model knows them.

Labels are worth most for images like those on which the model will be judged and which it does not recognize yet. The
weight of a pool image is the product of two factors:

- the density of the validation set divided by that of the pool, from the class probabilities of a posterior. A class in
  which the model fails counts more, in proportion to the square root of the probability that it misses on average.
- 1 minus the margin between the two largest class probabilities of the model.

The class proportions of the pool are uncertain if the posterior is poor. Their correction is therefore raised to the
power of the reliability, which is 0 for a posterior that guesses and 1 for one that makes no mistakes.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.features import View, Watch
from rarefish.pseudo_labels.label_shift import fit_temperature
from rarefish.pseudo_labels.posterior import Evidence, Seen, TrustedPosterior

LEAST_NEED = 0.02
"""Added to the probability that the model misses in each class, so that no class counts for nothing."""
NEED_POWER = 0.5
"""Exponent of the need of a class."""


@dataclass(frozen=True)
class TargetWeights:
    """Estimator that returns the class probabilities of each image, multiplied by the weight of the image."""

    posterior: TrustedPosterior
    log_shift_C: Float[Tensor, " C"]
    """Logarithm of the ratio of each class's proportion in the pool to that in the validation set."""
    need_C: Float[Tensor, " C"]
    """Factor by which each class counts."""
    temperature: float | None = None
    """Temperature of the model's probabilities. If None, the posterior's classifier stands for the model, which is
    trained on the validation set as well."""
    needs_labels: bool = False
    """Whether the true labels of the images are used instead of the posterior, for an upper bound in experiments."""

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Float[Tensor, "N C"]:
        logits_NC = self.posterior.mean_logits(Seen(view.images, view.features_ND)).float() / self.posterior.temperature
        if self.temperature is None:
            known_NC = logits_NC.softmax(dim=1)
        else:
            known_NC = (view.logits_NC.detach().float() / self.temperature).softmax(dim=1)
        if self.needs_labels:
            assert labels is not None, "the reader must return labels"
            logits_NC = torch.full_like(logits_NC, -torch.inf)
            logits_NC[torch.arange(len(labels)), labels.to(logits_NC.device)] = 0.0
        return weigh_images(logits_NC, known_NC, self.log_shift_C.to(logits_NC), self.need_C.to(logits_NC))


def weigh_images(
    logits_NC: Float[Tensor, "N C"],
    known_NC: Float[Tensor, "N C"],
    log_shift_C: Float[Tensor, " C"],
    need_C: Float[Tensor, " C"],
) -> Float[Tensor, "N C"]:
    """Returns the class probabilities under the pool's proportions, multiplied by the weight of each image.

    Args:
        logits_NC: Logits of the posterior for the class proportions of the validation set.
        known_NC: Class probabilities according to the model.
        log_shift_C: Logarithm of the ratio of each class's proportion in the pool to that in the validation set.
        need_C: Factor by which each class counts.
    """
    shifted_NC = logits_NC + log_shift_C
    density_ratio_N = (logits_NC.logsumexp(dim=1) - shifted_NC.logsumexp(dim=1)).exp()
    need_N = logits_NC.softmax(dim=1) @ need_C
    largest_N2 = known_NC.topk(2, dim=1).values
    doubt_N = 1 - (largest_N2[:, 0] - largest_N2[:, 1])
    return shifted_NC.softmax(dim=1) * (density_ratio_N * need_N * doubt_N)[:, None]


@dataclass(frozen=True)
class Judged:
    """Predictions for validation images by a model that was not trained on them."""

    probabilities: Float[Tensor, "V C"]
    labels: Int[Tensor, " V"]

    @property
    def predictions(self) -> Int[Tensor, " V"]:
        return self.probabilities.argmax(dim=1)

    @property
    def margins(self) -> Float[Tensor, " V"]:
        """Difference between the two largest probabilities."""
        return self.probabilities.topk(2, dim=1).values.diff(dim=1).neg().squeeze(1)

    def needs(self) -> Float[Tensor, " C"]:
        """Returns the factor by which each class counts; the mean of all classes if it has no images."""
        num_classes = self.probabilities.shape[1]
        missing_V = 1 - self.probabilities.gather(1, self.labels[:, None]).squeeze(1)
        count_C = self.labels.bincount(minlength=num_classes)
        mean_C = missing_V.new_zeros(num_classes).index_add_(0, self.labels, missing_V) / count_C
        return (mean_C.where(count_C > 0, mean_C[count_C > 0].mean()) + LEAST_NEED) ** NEED_POWER


def judge(evidence: Evidence, posterior: TrustedPosterior, *, cross_fit: bool) -> Judged:
    """Returns predictions for the validation images: out of fold with `cross_fit`, otherwise those of the model."""
    count = evidence.num_validation
    labels_V = evidence.labels[:count]
    if not cross_fit:
        return Judged((evidence.logits[:count] / temperature_of(evidence)).softmax(dim=1), labels_V)
    seen = Seen(evidence.trusted.images[:count], evidence.trusted.features[:count])
    found_VC = posterior.mean_logits(seen).float().softmax(dim=1).cpu()
    # An image that was never held out is the only one of its class; a classifier without it would not know the class.
    found_VC[torch.arange(count), labels_V] = 0.0
    found_VC[posterior.held_rows] = (posterior.held_logits / posterior.temperature).softmax(dim=1).float()
    return Judged(found_VC, labels_V)


def temperature_of(evidence: Evidence) -> float:
    """Returns the temperature at which the model's logits for the validation images are calibrated."""
    count = evidence.num_validation
    return fit_temperature(evidence.logits[:count].double(), evidence.labels[:count])


def target_weights(
    evidence: Evidence,
    posterior: TrustedPosterior,
    judged: Judged,
    *,
    cross_fit: bool,
    pool_labels: Int[Tensor, " U"] | None = None,
) -> TargetWeights:
    """Returns the estimator of weights; with `pool_labels`, the true labels of the pool, for an upper bound."""
    weights = TargetWeights(
        posterior,
        posterior.reliability * posterior.log_shift_C,
        judged.needs(),
        None if cross_fit else temperature_of(evidence),
    )
    if pool_labels is None:
        return weights
    mix_C = pool_labels.bincount(minlength=len(evidence.prior)) / len(pool_labels)
    shift_C = (mix_C.clamp_min(1e-6) / evidence.prior.clamp_min(1e-6)).log()
    return replace(weights, log_shift_C=shift_C, needs_labels=True)
