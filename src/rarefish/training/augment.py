"""Random augmentation: shift images by whole pixels and mirror them, or enlarge and shift them by interpolation."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rarefish.training.config import Training

ZOOM_SHIFT = 0.08
"""Maximum shift of an enlarged image, as a fraction of half its side."""


def draw_moves(sizes: Sequence[int], training: Training, generator: torch.Generator) -> Tensor:
    """Draws the random numbers for `augment()`, one row per image of an epoch with batches of these sizes.

    The columns are (shift down, shift across, mirrored) in pixels or, with `zoom`, random numbers from 0 to 1 for
    (zoom, shift across, shift down, mirrored). Without augmentation, there are no columns and nothing is drawn.
    """
    count = sum(sizes)
    if training.zoom:
        return torch.cat([torch.rand(4, size, generator=generator) for size in (*sizes, 0)], dim=1).T
    if not (training.shift or training.flip):
        return torch.empty(count, 0, dtype=torch.long)
    shifts_N2 = torch.randint(-training.shift, training.shift + 1, (count, 2), generator=generator)
    mirrored_N1 = torch.randint(2, (count, 1), generator=generator) * training.flip
    return torch.cat([shifts_N2, mirrored_N1], dim=1)


def augment(images: Tensor, moves: Tensor, training: Training) -> Tensor:
    """Returns each image augmented according to its row of `moves`."""
    if training.zoom:
        return enlarge(images, moves, training.zoom, training.flip)
    return move(images, moves)


def move(images: Float[Tensor, "N C H W"] | Tensor, moves: Int[Tensor, "N moves"]) -> Tensor:
    """Returns each image shifted and mirrored according to its row of `moves`, padded by repeating the border."""
    if moves.shape[1] == 0:
        return images
    height, width = images.shape[-2:]
    down_N1, across_N1, mirrored_N1 = moves.unsqueeze(2).unbind(1)
    row_NH = (torch.arange(height, device=images.device) + down_N1).clamp(0, height - 1)
    column_NW = (torch.arange(width, device=images.device) + across_N1).clamp(0, width - 1)
    column_NW = torch.where(mirrored_N1 > 0, width - 1 - column_NW, column_NW)
    image_N11 = torch.arange(len(images), device=images.device)[:, None, None]
    return images.movedim(1, -1)[image_N11, row_NH[:, :, None], column_NW[:, None, :]].movedim(-1, 1)


def enlarge(
    images: Float[Tensor, "N C H W"], moves: Float[Tensor, "N 4"], most: float, flip: bool
) -> Float[Tensor, "N C H W"]:
    """Returns each image enlarged by up to the fraction `most`, shifted and, with `flip`, possibly mirrored.

    Images are padded by repeating the border.
    """
    zoom, across, down, mirrored = moves.unbind(1)
    zoom, zero = 1 - most * zoom, torch.zeros_like(zoom)
    sign = torch.where(mirrored < 0.5, -1.0, 1.0) if flip else torch.ones_like(zoom)
    rows = [[zoom * sign, zero, ZOOM_SHIFT * (2 * across - 1)], [zero, zoom, ZOOM_SHIFT * (2 * down - 1)]]
    theta_N23 = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1).to(images.device, images.dtype)
    grid = functional.affine_grid(theta_N23, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
