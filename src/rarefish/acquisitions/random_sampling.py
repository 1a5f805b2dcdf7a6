"""The baseline: any images."""

import torch

from rarefish.acquisitions.interface import Choice, Situation


def choose_random(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Unlabeled images drawn without replacement, all equally likely."""
    rows = torch.randperm(len(situation.unlabeled), generator=generator)[:budget]
    return Choice([situation.unlabeled[row] for row in rows.tolist()])
