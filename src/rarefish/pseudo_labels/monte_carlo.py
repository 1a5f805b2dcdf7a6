"""Monte Carlo labels: the class whose Fisher score depends most on the features under small distortions."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rarefish.data.visualize import rotate
from rarefish.errors import ArgumentError, nearest
from rarefish.features import View, Watch, pull_back, spatial_mean

RIDGE = 1e-6
"""Value added to the unit variance of each channel, since S samples of more channels have a singular covariance."""


@dataclass(frozen=True, kw_only=True)
class MonteCarlo:
    """Estimator that returns the class whose Fisher score depends most on the features under small distortions.

    All images get the same distortions, drawn from the seed, so that an image's label does not depend on the batch.
    """

    statistic: str = "trace"
    """`trace`: tr C_{z,g(d)}; `mutual_information`: I(z; g(d)) of Gaussians with the sampled covariances."""
    samples: int = 128
    """Number of distorted copies per image (K in the paper)."""
    degrees: float | int = 5
    """Maximum rotation; angles are uniform between minus and plus this value."""
    noise: float | int = 0.01
    """Standard deviation of the Gaussian noise added to each pixel."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.statistic not in STATISTICS:
            raise ArgumentError(f"There is no statistic {self.statistic!r}. {nearest(self.statistic, STATISTICS)}")
        if self.samples < 2 or self.degrees < 0 or self.noise < 0:
            raise ArgumentError(
                f"MonteCarlo needs samples >= 2, degrees >= 0 and noise >= 0, not samples={self.samples}, "
                f"degrees={self.degrees}, noise={self.noise}."
            )

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Tensor:
        """Returns the best class of each image; processes as many at a time as fill a batch with samples."""
        if view.images.ndim != 4:
            raise ArgumentError(
                f"Monte Carlo labels need images of shape (N, C, H, W), not {tuple(view.images.shape)}."
            )
        at_once = max(1, len(view.images) // self.samples)
        return torch.cat([self._choose(images, watch) for images in view.images.split(at_once)])

    def _choose(self, images: Tensor, watch: Watch) -> Tensor:
        seen = watch(self.distort(images))
        shape = (len(images), self.samples)
        features_NSD, statistic = seen.features_ND.unflatten(0, shape), STATISTICS[self.statistic]
        values = []
        for scores_CND in scores_of_all_classes(seen):
            scores_BSD = scores_CND.unflatten(1, shape).flatten(
                0, 1
            )  # B: images 1 to N for the first class, then for the second, and so on
            values.append(
                statistic(features_NSD.repeat(len(scores_CND), 1, 1), scores_BSD).unflatten(0, (-1, shape[0]))
            )
        return torch.cat(values).argmax(dim=0)

    def distort(self, images: Tensor) -> Tensor:
        """Returns all samples of the first image, then all of the second, and so on."""
        generator = torch.Generator().manual_seed(self.seed)
        angles_S = (2 * torch.rand(self.samples, generator=generator) - 1) * math.radians(self.degrees)
        noise_S = self.noise * torch.randn(self.samples, *images.shape[1:], generator=generator)
        rotated = rotate(images.repeat_interleave(self.samples, dim=0), angles_S.repeat(len(images)).to(images))
        return rotated + noise_S.to(images).repeat(len(images), *[1] * (images.ndim - 1))


def scores_of_all_classes(seen: View) -> Iterator[Tensor]:
    """Yields ∂L(d)/∂z of every image for every class d, as (classes, N, D), from one batched backward pass.

    There are several parts only if all classes together would not fit into memory.
    """
    num_classes = seen.logits_NC.shape[1]
    # The gradient of the cross-entropy of label d at the logits is softmax - 1_d; the rest of the pass is linear.
    probability_NC = seen.logits_NC.detach().softmax(dim=1)
    one_hot_CC = torch.eye(num_classes, device=probability_NC.device, dtype=probability_NC.dtype)
    at_once = max(1, 2**28 // sum(m.numel() for m in seen.maps))
    for one_hot in one_hot_CC.split(at_once):
        pull = probability_NC - one_hot[:, None]
        pulled = pull_back(seen.logits_NC, seen.maps, grad_outputs=pull, retain_graph=True, is_grads_batched=True)
        pooled = [spatial_mean(map_.flatten(0, 1)).unflatten(0, map_.shape[:2]) for map_ in pulled]
        yield torch.cat(pooled, dim=2)


def cross_trace(features_NSD: Tensor, scores_NSD: Tensor) -> Tensor:
    """Returns the trace of the cross-covariance of features and scores over the samples of each image."""
    z, g = (x - x.mean(dim=1, keepdim=True) for x in (features_NSD.double(), scores_NSD.double()))
    return (z * g).sum(dim=2).mean(dim=1)


def mutual_information(features_NSD: Tensor, scores_NSD: Tensor) -> Tensor:
    """Returns ½ log(|C_zz| |C_gg| / |C_zg,zg|) over the samples of each image, in nats.

    Every channel is first scaled to unit variance, which does not change the information, so that the same ridge is
    small for all channels. A constant channel adds log(ridge) to numerator and denominator, which cancels out.
    """
    joint = torch.cat([unit_variance(features_NSD.double()), unit_variance(scores_NSD.double())], dim=2)
    covariance = joint.mT @ joint / joint.shape[1]
    covariance.diagonal(dim1=1, dim2=2).add_(RIDGE)
    D = features_NSD.shape[2]
    # The Cholesky factor of C_zg,zg starts with that of C_zz; the rest of its diagonal gives |C_zg,zg| / |C_zz|.
    rest, alone = torch.linalg.cholesky_ex(covariance).L[:, D:, D:], torch.linalg.cholesky_ex(covariance[:, D:, D:]).L
    return alone.diagonal(dim1=1, dim2=2).log().sum(dim=1) - rest.diagonal(dim1=1, dim2=2).log().sum(dim=1)


def unit_variance(samples_NSD: Tensor) -> Tensor:
    """Returns the channels standardized to mean 0 and variance 1 over the samples; constant channels become 0."""
    scale = samples_NSD.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(samples_NSD.dtype).tiny)
    centered = samples_NSD / scale - (samples_NSD / scale).mean(dim=1, keepdim=True)
    deviation = centered.square().mean(dim=1, keepdim=True).sqrt()
    # Features are float32, so variation below its rounding error counts as none.
    return torch.where(deviation <= 1e-7, 0.0, centered / deviation.clamp_min(1e-30))


STATISTICS = {"trace": cross_trace, "mutual_information": mutual_information}
