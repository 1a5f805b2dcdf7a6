"""The baseline: a uniform random sample of the unlabeled images."""

import torch

from rarefish.acquisitions.interface import Choice, Situation


def choose_random(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses unlabeled images uniformly at random, without replacement."""
    rows = torch.randperm(len(situation.unlabeled), generator=generator)[:budget]
    return Choice([situation.unlabeled[row] for row in rows.tolist()])
