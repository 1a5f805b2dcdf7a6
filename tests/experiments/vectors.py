"""A small field test on vectors: six classes of different sizes in twelve dimensions."""

import numpy as np
import torch

from rarefish.data.embeddings import Embeddings
from rarefish.experiments.frozen_features import Setting
from rarefish.experiments.settings import Method

SIZES = (60, 50, 40, 30, 25, 20)
METHODS = tuple(Method(name=name, acquisition=name) for name in ("random", "margin", "badge"))
WITHHELD = Setting(dataset="vectors", imbalance=5, per_class=3, trusted="withheld", budget=8)
TRAINED = Setting(dataset="vectors", imbalance=5, per_class=3, trusted="trained", budget=8)


def load_vectors(name: str) -> tuple[Embeddings, Embeddings]:
    """Returns the same vectors for every name, in float16 as features are."""
    assert name == "vectors"
    generator = torch.Generator().manual_seed(0)
    centers = 1.2 * torch.randn(len(SIZES), 12, generator=generator)

    def draw(sizes: tuple[int, ...]) -> Embeddings:
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        labels = labels[torch.randperm(len(labels), generator=generator)]
        values = centers[labels] + torch.randn(len(labels), 12, generator=generator)
        return Embeddings(values.half().numpy(), labels=labels.numpy())

    return draw(SIZES), draw((20,) * len(SIZES))


def labels_in(part: Embeddings) -> np.ndarray:
    assert part.labels is not None
    return part.labels
