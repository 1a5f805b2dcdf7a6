"""Image tensors as pictures a person can look at."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

GAP = 6


def to_picture(image: Any, smallest: int = 1) -> Image.Image:
    """The image stretched to its full range of grey or colour, enlarged until it is `smallest` pixels high."""
    values = torch.as_tensor(np.asarray(image) if not isinstance(image, torch.Tensor) else image).detach().cpu().float()
    values = values[None] if values.ndim == 2 else values
    values = values if values.shape[0] in (1, 3) else values.mean(dim=0, keepdim=True)
    low, high = values.amin(), values.amax()
    grey = ((values - low) / (high - low).clamp_min(1e-12) * 255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(grey.squeeze(2) if grey.shape[2] == 1 else grey).convert("RGB")
    times = max(1, -(-smallest // picture.height))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)


def draw_pairs(pairs: Sequence[tuple[Any, Any]], captions: Sequence[str], columns: int = 8) -> Image.Image:
    """One sheet: each pair side by side over its caption; a legend on top."""
    font = ImageFont.load_default(size=12)
    cells = [(to_picture(left, 56), to_picture(right, 56)) for left, right in pairs]
    width = max(max(left.width + right.width for left, right in cells) + 3, 112)
    height = max(max(left.height, right.height) for left, right in cells)
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    top, line = 26, 18
    legend = "left: the failure on validation · right: the image chosen for it (index, label it was described with)"
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
