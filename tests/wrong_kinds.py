"""Run by test_selection.py without type checks: arguments of the wrong kind get a sentence, all right kinds work."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from rarefish import RarefishError, select
from tests.cases import Plain, labeled

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"exclude": torch.zeros(30, dtype=torch.bool)}, "exclude is a boolean mask"),
    ({"exclude": np.zeros(30, dtype=bool)}, "exclude is a boolean mask"),
    ({"exclude": [1.5]}, "integers, but found 1.5"),
    ({"exclude": [True, False]}, "integers, but found True, False"),
    ({"budget": 3.0}, "budget must be an integer, not 3.0"),
    ({"budget": True}, "budget must be an integer, not True"),
    ({"layers": ()}, "at least one name"),
    ({"kernel": ["fisher"]}, "no kernel"),
    ({"labels": ["true"]}, "no label estimator"),
    ({"precision": torch.bfloat16}, "no precision"),
    ({"pool": "pictures/"}, "The pool is a path, 'pictures/'"),
    ({"model": lambda x: x}, "The model is a function. Give an nn.Module"),
    ({"model": lambda x: x, "layers": None}, "The model is a function. Give an nn.Module"),
]
ARGUMENTS: dict[str, Any] = {
    "model": Plain(),
    "pool": labeled(30, 1),
    "validation": labeled(12, 2),
    "budget": 3,
    "layers": ("conv1", "conv2"),
}

for changes, message in WRONG:
    try:
        select(**ARGUMENTS | changes)
    except RarefishError as error:
        assert message in str(error), f"{changes}: {error}"  # noqa: PT017
    else:
        raise AssertionError(f"{changes} passed")

forms = [{1, 2}, (1, 2), iter([1, 2]), torch.tensor([1, 2]), np.array([1, 2]), [np.int64(1), torch.tensor(2)]]
chosen = [select(**ARGUMENTS | {"exclude": form}).indices.tolist() for form in forms]
assert all(one == chosen[0] for one in chosen), chosen
assert len(select(**ARGUMENTS | {"exclude": None, "budget": np.int64(4), "batch_size": np.int64(7)})) == 4
