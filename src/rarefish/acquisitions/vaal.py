"""Images that a discriminator on the latent codes of a β-VAE classifies as unlabeled (VAAL: Sinha et al., 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from rarefish.acquisitions.interface import Choice, Situation, take_largest
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.data.lazy_images import Images, Stored, read_parts
from rarefish.models.layer_selection import device_of
from rarefish.models.networks import draw_weights
from rarefish.ops.cuda_graph import RecordedStep
from rarefish.training.loop import read_images
from rarefish.training.optimizers import take_step


@dataclass(frozen=True, kw_only=True)
class Vaal:
    """Settings of VAAL, with the defaults of the paper.

    Only `steps` differs: the paper derives it from the training settings of the task.
    """

    latent: int = 32
    beta: float = 1.0
    """Weight of the KL divergence to the prior."""
    adversary: float = 1.0
    """Weight of the adversarial loss of the encoder."""
    lr: float = 5e-4
    batch_size: int = 128
    steps: int = 1000


class Encoder(nn.Module):
    """Maps images to the mean and the log-variance of their latent codes."""

    def __init__(self, channels: int, latent: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(64 * 49, 256),
            nn.ReLU(),
        )
        self.head = nn.Linear(256, 2 * latent)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.head(self.body(images)).chunk(2, dim=1)
        return mean, log_variance.clamp(-10, 10)


class Decoder(nn.Module):
    """Maps latent codes to images."""

    def __init__(self, channels: int, latent: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        self.start = nn.Sequential(nn.Linear(latent, 64 * 49), nn.ReLU())
        self.body = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, channels, 4, stride=2, padding=1),
        )

    def forward(self, code: Tensor) -> Tensor:
        image = self.body(self.start(code).unflatten(1, (64, 7, 7)))
        return functional.interpolate(image, self.size, mode="bilinear", align_corners=False)


def choose_vaal(
    situation: Situation, budget: int, generator: torch.Generator, *, settings: Vaal | None = None
) -> Choice:
    """Chooses the images that the discriminator considers least similar to labeled ones; the first round is random."""
    if not situation.labeled:
        return choose_random(situation, budget, generator)
    settings, device = settings or Vaal(), device_of(situation.model)
    labeled, unlabeled = (
        images_at(situation, index, device) for index in (list(situation.labeled), situation.unlabeled)
    )
    encoder, discriminator = train_vaal(labeled, unlabeled, settings, generator, device)
    rows = torch.arange(len(unlabeled)).split(situation.batch_size)
    with torch.no_grad():
        codes = [encoder(images)[0] for images in read_parts(unlabeled, rows, device, torch.float32)]
        scores = -torch.cat([discriminator(code).squeeze(1) for code in codes])
    passes = len(unlabeled) + 2 * 2 * settings.steps * settings.batch_size
    return take_largest(situation, scores, budget, generator, passes)


def images_at(situation: Situation, index: list[int], device: torch.device) -> Images:
    """Returns pool images, on the device if the pool is in memory, and otherwise loaded batch by batch."""
    if isinstance(situation.pool, TensorDataset):
        return read_images(situation.pool, index).to(device)
    return Stored(situation.pool, index, situation.workers)


def train_vaal(
    labeled: Images, unlabeled: Images, settings: Vaal, generator: torch.Generator, device: torch.device
) -> tuple[Encoder, nn.Module]:
    """Trains a β-VAE against a discriminator and returns the encoder and the discriminator.

    Each batch is half labeled and half unlabeled.
    """
    (_, channels, *size), latent = labeled.shape, settings.latent
    with torch.random.fork_rng(devices=[]):  # PyTorch initializes layers from the global generator
        encoder, decoder = Encoder(channels, latent), Decoder(channels, latent, (size[0], size[1]))
        wide, last = nn.Linear(512, 512), nn.Linear(512, 1)
        discriminator = nn.Sequential(nn.Linear(latent, 512), nn.ReLU(), wide, nn.ReLU(), last)
    for part in (encoder, decoder, discriminator):
        draw_weights(part, generator).to(device)
    vae_optimizer, discriminator_optimizer = (
        torch.optim.Adam(
            [parameter for part in parts for parameter in part.parameters()],
            lr=settings.lr,
            capturable=device.type == "cuda",
        )
        for parts in ((encoder, decoder), (discriminator,))
    )
    count = settings.batch_size
    is_labeled = (torch.arange(2 * count, device=device)[:, None] < count).float()

    def train_step(images: Tensor, noise: Tensor) -> None:
        mean, log_variance = encoder(images)
        reconstruction = decoder(mean + noise * (log_variance / 2).exp())
        prior_loss = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(dim=1).mean()
        reconstruction_loss = functional.mse_loss(reconstruction, images, reduction="sum") / len(images)
        # The encoder is trained to make both kinds of images look labeled.
        adversarial_loss = functional.binary_cross_entropy_with_logits(discriminator(mean), torch.ones_like(is_labeled))
        take_step(
            vae_optimizer, reconstruction_loss + settings.beta * prior_loss + settings.adversary * adversarial_loss
        )
        take_step(
            discriminator_optimizer,
            functional.binary_cross_entropy_with_logits(discriminator(mean.detach()), is_labeled),
        )

    step = RecordedStep(train_step)
    noise_generator = torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    rows = [
        torch.randint(len(x), (settings.steps, count), generator=generator).to(device) for x in (labeled, unlabeled)
    ]
    batches = (
        read_parts(x, list(own), device, torch.float32) for x, own in zip((labeled, unlabeled), rows, strict=True)
    )
    for labeled_and_unlabeled in zip(*batches, strict=True):
        noise = torch.randn(2 * count, latent, generator=noise_generator, device=device)
        step(torch.cat(labeled_and_unlabeled), noise)
    return encoder, discriminator
