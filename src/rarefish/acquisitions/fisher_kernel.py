"""Images like those the model fails on, by Fisher kernel."""

import torch

from rarefish.acquisitions.situation import Choice, Situation
from rarefish.selection import select


def choose_fisher(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """`select()` with its defaults."""
    selection = select(
        situation.model,
        situation.pool,
        situation.validation,
        budget=budget,
        exclude=situation.labeled,
        generator=generator,
        progress=False,
    )
    return Choice(selection.indices.tolist(), selection)
