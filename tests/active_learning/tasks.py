"""A small task, and its rounds, for the tests of the loop."""

from typing import Any

import torch

from rarefish.acquisitions import ACQUISITIONS
from rarefish.active_learning.oracles import known_labels
from rarefish.active_learning.rounds import Round, run_rounds
from rarefish.active_learning.task import Task
from rarefish.training.loop import Training
from tests.cases import NUM_CLASSES, Plain, labeled

POOL, VALIDATION, TEST = labeled(40, 1), labeled(12, 2), labeled(10, 3)
TRUTH = POOL.tensors[1].tolist()


def task(acquire: Any = ACQUISITIONS["random"], start: Plain | None = None, **changes: Any) -> Task:
    torch.manual_seed(0)
    settings = {
        "pool": POOL,
        "validation": VALIDATION,
        "test": TEST,
        "starts": (start or Plain(),),
        "acquire": acquire,
        "oracle": known_labels(TRUTH),
        "budget": 5,
        "num_classes": NUM_CLASSES,
        "training": Training(epochs=2),
    }
    return Task(**settings | changes)


def rounds(*args: Any, num_rounds: int = 3, **changes: Any) -> list[Round]:
    return list(run_rounds(task(*args, **changes), num_rounds))
