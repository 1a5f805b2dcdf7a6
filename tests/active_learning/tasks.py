"""A small task, and its rounds, for the tests of the loop."""

from dataclasses import fields
from typing import Any

import torch

from rarefish.acquisitions import ACQUISITIONS, Situation, find_acquisition
from rarefish.active_learning.oracles import known_labels
from rarefish.active_learning.rounds import Round, Task, run_rounds
from rarefish.pseudo_labels.posterior import Posterior
from rarefish.training.config import Training
from tests.cases import NUM_CLASSES, Plain, labeled

POOL, VALIDATION, TEST = labeled(40, 1), labeled(12, 2), labeled(10, 3)
TRUTH = POOL.tensors[1].tolist()
ANSWERS = known_labels(TRUTH)
QUICK = ACQUISITIONS | {"fisher": find_acquisition("fisher", labels=Posterior(steps=(5, 5)))}
"""All acquisitions, with a posterior that is hardly trained."""


def task(acquire: Any = ACQUISITIONS["random"], start: Plain | None = None, **changes: Any) -> Task:
    """A task with changed fields; those of its first situation are given in the same way."""
    torch.manual_seed(0)
    known = {each.name: changes.pop(each.name) for each in fields(Situation) if each.name in changes}
    plain = {"models": (start or Plain(),), "pool": POOL, "validation": VALIDATION, "ask": ANSWERS}
    settings = {
        "start": Situation(**plain | known),
        "test": TEST,
        "acquire": acquire,
        "budget": 5,
        "num_classes": NUM_CLASSES,
        "training": Training(epochs=2),
    }
    return Task(**settings | changes)


def rounds(*args: Any, num_rounds: int = 3, **changes: Any) -> list[Round]:
    return list(run_rounds(task(*args, **changes), num_rounds))
