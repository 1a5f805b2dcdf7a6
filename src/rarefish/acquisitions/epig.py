"""Expected predictive information gain about target images (EPIG: Bickford Smith et al., 2023)."""

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.dropout import mc_dropout
from rarefish.acquisitions.interface import Choice, Situation, take_largest
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.acquisitions.uncertainty import MIN_PROBABILITY
from rarefish.models.layer_selection import device_of


@torch.no_grad()
def choose_epig(
    situation: Situation, budget: int, generator: torch.Generator, *, samples: int = 100, num_targets: int = 100
) -> Choice:
    """Chooses the images with the largest mean mutual information with the predictions on target images.

    The targets are a random sample of the validation set, which represents the data at test time. Its labels are not
    used. Monte Carlo dropout draws the same networks for the pool and the targets. The first round is random.
    """
    if not situation.is_trained:
        return choose_random(situation, budget, generator)
    device = device_of(situation.model)
    masks = torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    target_index = torch.randperm(len(situation.validation), generator=generator)[:num_targets].sort().values.tolist()
    values = []
    with mc_dropout(situation.model, samples, masks) as predict:
        targets = [batch.images for batch in situation.reader.read(situation.validation, target_index)]
        target_TMC = torch.cat([predict(images.to(device)).softmax(dim=2) for images in targets], dim=1)
        for batch in situation.reader.read(situation.pool, situation.unlabeled):
            for images in batch.images.to(device).split(max(1, 4 * situation.batch_size // samples)):
                values.append(epig(predict(images).softmax(dim=2), target_TMC))
    passes = samples * (len(situation.unlabeled) + len(target_index))
    return take_largest(situation, torch.cat(values), budget, generator, passes)


def epig(pool: Float[Tensor, "T N C"], targets: Float[Tensor, "T M C"]) -> Float[Tensor, " N"]:
    """Returns the mean over targets of I(y; y*) under the joint prediction p(y, y*) = mean over T of p_t(y) p_t(y*)."""
    T, N, C = pool.shape
    joint = pool.permute(1, 2, 0).reshape(N * C, T) @ targets.reshape(T, -1) / T
    joint_NCMC = joint.reshape(N, C, targets.shape[1], C)
    product_NCMC = pool.mean(dim=0)[:, :, None, None] * targets.mean(dim=0)[None, None]
    ratio = joint_NCMC.clamp_min(MIN_PROBABILITY).log() - product_NCMC.clamp_min(MIN_PROBABILITY).log()
    return (joint_NCMC * ratio).sum(dim=(1, 3)).mean(dim=1)
