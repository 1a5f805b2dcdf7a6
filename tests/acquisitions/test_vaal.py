"""VAAL separates labeled images from unlabeled ones."""

import torch

from rarefish.acquisitions.vaal import Vaal, train_vaal
from tests.acquisitions.situations import CPU, seeded


def test_vaal_tells_labeled_from_unlabeled() -> None:
    """The discriminator scores bright labeled images higher than dark unlabeled ones."""
    bright, dark = (torch.rand(20, 1, 28, 28, generator=seeded(s)) + 2 * (s == 0) for s in (0, 1))
    encoder, discriminator = train_vaal(bright, dark, Vaal(steps=60, batch_size=16, adversary=0.0), seeded(), CPU)
    with torch.no_grad():
        scores = [float(discriminator(encoder(images)[0]).mean()) for images in (bright, dark)]
    assert scores[0] > scores[1] + 1
