"""A start without labels: the network learns to tell by how much an image is turned (Gidaris et al., 2018)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rarefish.models import with_new_classifier
from rarefish.training import Training, fit

ROTATION = Training(epochs=8, decay_every=3)
"""The paper's settings for MNIST."""


def pretrain_rotation(
    model: nn.Module,
    images: Float[Tensor, "N C H W"],
    num_classes: int,
    generator: torch.Generator,
    training: Training = ROTATION,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> nn.Module:
    """A copy that has learned the four-way rotation task on the images, with a fresh classifier for `num_classes`.

    All four rotations of an image stand in one batch, so a batch holds four times `training.batch_size` images.
    """
    turning = with_new_classifier(model, 4, generator)
    unlabeled = torch.zeros(len(images), dtype=torch.long)
    fit(turning, images, unlabeled, training, generator, lambda shown, _: all_rotations(shown), on_epoch)
    return with_new_classifier(turning, num_classes, generator)


def all_rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images turned by 0, 90, 180 and 270 degrees, and by how many quarter turns each."""
    turned = torch.cat([images.rot90(turns, (-2, -1)) for turns in range(4)])
    return turned, torch.arange(4, device=images.device).repeat_interleave(len(images))
