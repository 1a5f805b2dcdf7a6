"""VAAL separates labeled images from unlabeled ones."""

from dataclasses import replace

import torch
from torch.utils.data import TensorDataset

from rarefish.acquisitions.vaal import Vaal, choose_vaal, train_vaal
from tests.acquisitions.situations import CPU, seeded, situation


def test_vaal_tells_labeled_from_unlabeled() -> None:
    """The discriminator scores bright labeled images higher than dark unlabeled ones."""
    bright, dark = (torch.rand(20, 1, 28, 28, generator=seeded(s)) + 2 * (s == 0) for s in (0, 1))
    encoder, discriminator = train_vaal(bright, dark, Vaal(steps=60, batch_size=16, adversary=0.0), seeded(), CPU)
    with torch.no_grad():
        scores = [float(discriminator(encoder(images)[0]).mean()) for images in (bright, dark)]
    assert scores[0] > scores[1] + 1


def test_vaal_chooses_what_is_least_like_the_labeled_images() -> None:
    """Some of the bright images have labels; the dark ones are chosen."""
    is_bright = torch.arange(40) % 5 < 3
    images = 0.3 * torch.randn(40, 2, 8, 8, generator=seeded()) + is_bright[:, None, None, None]
    labeled = tuple(is_bright.nonzero().flatten()[:12].tolist())
    here = replace(situation(labeled), pool=TensorDataset(images))
    chosen = choose_vaal(here, 10, seeded(), settings=Vaal(steps=40, batch_size=16, latent=4, lr=2e-3, adversary=0.0))
    assert not is_bright[chosen.indices].any()
