"""The situation, the settings and the loops that the tests of the acquisitions share."""

import math
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.acquisitions import Choice, Situation, find_acquisition
from rarefish.acquisitions.vaal import Vaal
from rarefish.active_learning.oracles import known_labels
from rarefish.pseudo_labels.posterior import Posterior
from tests.cases import Plain, labeled

POOL, VALIDATION, CPU = labeled(30, 1), labeled(12, 2), torch.device("cpu")
ANSWERS = known_labels(POOL.tensors[1].tolist())
FAST: dict[str, dict[str, Any]] = {
    "variation_ratio": {"samples": 5},
    "bald": {"samples": 5},
    "mean_std": {"samples": 5},
    "vaal": {"settings": Vaal(steps=2, batch_size=4)},
    "epig": {"samples": 5, "num_targets": 4},
    **{f"posterior_{how}": {"labels": Posterior(steps=(5, 5))} for how in ("quotas", "entropy", "likeliest")},
}


class Dropped(Plain):
    default_dropout = {"conv1": 0.25, "conv2": 0.5}  # noqa: RUF012


def situation(labeled_: tuple[int, ...] = (3, 9, 11), members: int = 1, batch_size: int = 1000) -> Situation:
    torch.manual_seed(0)
    models = tuple(Dropped() for _ in range(members))
    return Situation(models, POOL, VALIDATION, labeled_, batch_size=batch_size, ask=ANSWERS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def choose(name: str, here: Situation, budget: int, seed: int = 0) -> Choice:
    return find_acquisition(name, **FAST.get(name, {}))(here, budget, seeded(seed))


def slow_statistic(name: str, answers: list[list[float]]) -> float:
    """Returns the statistic of one image from T lists of C probabilities."""
    T, C = len(answers), len(answers[0])
    mean = [sum(p[c] for p in answers) / T for c in range(C)]

    def entropy(p: list[float]) -> float:
        return -sum(q * math.log(q) for q in p if q > 0)

    votes = [max(range(C), key=lambda c: p[c]) for p in answers]
    spread = [math.sqrt(sum((p[c] - mean[c]) ** 2 for p in answers) / T) for c in range(C)]
    first, second = sorted(mean)[-1], sorted(mean)[-2]
    return {
        "least_confidence": 1 - first,
        "margin": second - first,
        "entropy": entropy(mean),
        "variation_ratio": 1 - max(votes.count(c) for c in range(C)) / T,
        "bald": entropy(mean) - sum(map(entropy, answers)) / T,
        "mean_std": sum(spread) / C,
    }[name]


MEANS = 2 * torch.randn(4, 12, generator=seeded(7))
VECTORS = {"pool": [60, 30, 20, 10], "validation": [12, 6, 14, 8]}


def vectors(name: str) -> TensorDataset:
    """Vectors of overlapping clusters, in random order; no class is as frequent as another."""
    generator = seeded(len(name))
    labels = torch.arange(4).repeat_interleave(torch.tensor(VECTORS[name]))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return TensorDataset(MEANS[labels] + 2 * torch.randn(len(labels), 12, generator=generator), labels)


def vector_situation(labeled_: tuple[int, ...] = (3, 9, 11, 40, 77), head: nn.Module | None = None) -> Situation:
    """Vectors with a linear head that gets some of them wrong, or with another head."""
    torch.manual_seed(0)
    model = nn.Linear(12, 4)
    with torch.no_grad():
        model.weight += MEANS / 20
    pool = vectors("pool")
    truth = pool.tensors[1].tolist()
    return Situation(
        (head or model,),
        pool,
        vectors("validation"),
        labeled_,
        (5,),
        labels=tuple(truth[i] for i in labeled_),
        ask=known_labels(truth),
        batch_size=17,
    )
