"""Rotate image tensors, and convert them to pictures for display."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from rarefish.errors import ArgumentError

GAP = 6


def to_picture(image: Any, smallest: int = 1) -> Image.Image:
    """Returns the image with values stretched to 0 … 255, enlarged to a height of at least `smallest` pixels."""
    if isinstance(image, Image.Image):
        image = torch.from_numpy(np.array(image.convert("RGB"))).movedim(2, 0)
    values = torch.as_tensor(image).detach().cpu().float()
    if values.ndim not in (2, 3):
        raise ArgumentError(
            f"A picture must have the shape (channels, height, width), but this image is {tuple(values.shape)}."
        )
    values = values[None] if values.ndim == 2 else values
    values = values if values.shape[0] in (1, 3) else values.mean(dim=0, keepdim=True)
    low, high = values.amin(), values.amax()
    grey = ((values - low) / (high - low).clamp_min(1e-12) * 255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(grey.squeeze(2) if grey.shape[2] == 1 else grey).convert("RGB")
    times = max(1, -(-smallest // picture.height))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)


def rotate(images: Tensor, angles_N: Tensor) -> Tensor:
    """Rotates each image about its center by its angle in radians, with bilinear interpolation and zero padding."""
    height, width = images.shape[-2:]
    cos, sin, zero = angles_N.cos(), angles_N.sin(), torch.zeros_like(angles_N)
    # affine_grid's coordinates run from -1 to 1 on both axes, so rotations need the aspect ratio of the image.
    rows = [[cos, -sin * height / width, zero], [sin * width / height, cos, zero]]
    theta_N23 = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    grid = functional.affine_grid(theta_N23, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def draw_pairs(pairs: Sequence[tuple[Any, Any]], captions: Sequence[str], columns: int = 8) -> Image.Image:
    """Returns a contact sheet with each pair side by side above its caption, and a legend at the top."""
    font = ImageFont.load_default(size=12)
    cells = [(to_picture(left, 56), to_picture(right, 56)) for left, right in pairs]
    width = max(max(left.width + right.width for left, right in cells) + 3, 112)
    height = max(max(left.height, right.height) for left, right in cells)
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    top, line = 26, 18
    legend = "left: validation failure · right: image chosen for it (index and pseudo-label)"
    sheet_width = max(columns * (width + 2 * GAP) + GAP, int(font.getlength(legend)) + 2 * GAP)
    sheet = Image.new("RGB", (sheet_width, top + rows * (height + line + 2 * GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, GAP), legend, fill="black", font=font)
    for number, ((left, right), caption) in enumerate(zip(cells, captions, strict=True)):
        x = GAP + (number % columns) * (width + 2 * GAP)
        y = top + (number // columns) * (height + line + 2 * GAP)
        sheet.paste(left, (x, y))
        sheet.paste(right, (x + left.width + 3, y))
        draw.text((x, y + height + 2), caption, fill="#333333", font=font)
    return sheet
