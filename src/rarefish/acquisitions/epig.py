"""Images whose label would tell most about the answers on target images (EPIG: Bickford Smith et al., 2023)."""

import torch
from jaxtyping import Float
from torch import Tensor

from rarefish.acquisitions.dropout import sampling
from rarefish.acquisitions.interface import Choice, Situation, take_largest
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.acquisitions.uncertainty import SMALLEST
from rarefish.models.layers import device_of


@torch.no_grad()
def choose_epig(
    situation: Situation, budget: int, generator: torch.Generator, *, samples: int = 100, num_targets: int = 100
) -> Choice:
    """Largest expected predictive information gain: mean mutual information with the answers on target images.

    The targets are drawn from the validation set, which looks like the data the model will be judged on; its labels
    play no part. Dropout makes the samples, the same networks for pool and targets. A random first round.
    """
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    device = device_of(situation.model)
    masks = torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    drawn = torch.randperm(len(situation.validation), generator=generator)[:num_targets].sort().values.tolist()
    values = []
    with sampling(situation.model, samples, masks) as answer:
        targets = [batch.images for batch in situation.reader.read(situation.validation, drawn)]
        target_TMC = torch.cat([answer(images.to(device)).softmax(dim=2) for images in targets], dim=1)
        for batch in situation.reader.read(situation.pool, situation.unlabeled):
            for images in batch.images.to(device).split(max(1, 4 * situation.batch_size // samples)):
                values.append(epig(answer(images).softmax(dim=2), target_TMC))
    passes = samples * (len(situation.unlabeled) + len(drawn))
    return take_largest(situation, torch.cat(values), budget, generator, passes)


def epig(pool: Float[Tensor, "T N C"], targets: Float[Tensor, "T M C"]) -> Float[Tensor, " N"]:
    """Mean over targets of I(y; y*) under the joint answers p(y, y*) = mean over T of p_t(y) p_t(y*)."""
    T, N, C = pool.shape
    joint = pool.permute(1, 2, 0).reshape(N * C, T) @ targets.reshape(T, -1) / T
    joint_NCMC = joint.reshape(N, C, targets.shape[1], C)
    apart_NCMC = pool.mean(dim=0)[:, :, None, None] * targets.mean(dim=0)[None, None]
    ratio = joint_NCMC.clamp_min(SMALLEST).log() - apart_NCMC.clamp_min(SMALLEST).log()
    return (joint_NCMC * ratio).sum(dim=(1, 3)).mean(dim=1)
