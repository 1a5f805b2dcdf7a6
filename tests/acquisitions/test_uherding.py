"""UHerding against the greedy maximum of its objective; how its radius and temperature adapt."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from rarefish.acquisitions.uherding import smallest_distance
from tests.acquisitions.situations import choose, seeded, vector_situation, vectors

NUM = 15
"""Enough images that another radius would give others."""


def test_it_covers_uncertain_images_greedily() -> None:
    here = vector_situation()
    assert isinstance(here.model, nn.Linear)
    with torch.no_grad():
        here.model.weight *= 2  # overconfident, so that the temperature matters
    (images, _), (trusted, truth) = vectors("pool").tensors, vectors("validation").tensors
    points = functional.normalize(images.double(), dim=1)
    temperatures = [1 + step / 100 for step in range(1000)]
    with torch.no_grad():
        known, logits = here.model(trusted).double(), here.model(images).double()
    best = min(temperatures, key=lambda t: float(functional.cross_entropy(known / t, truth)))
    assert 1.5 < best < 10
    sure = (logits / best).softmax(dim=1).sort(dim=1, descending=True).values
    uncertainty = [1 - float(p[0] - p[1]) for p in sure]
    distance = torch.cdist(points, points)
    radius = min(float(distance[a, b]) for a in here.labeled for b in here.labeled if a != b)
    assert 0.1 < radius < 1

    def value(chosen: list[int]) -> float:
        covered = (-((distance[here.unlabeled][:, chosen].amin(dim=1) / radius) ** 2)).exp()
        return float(covered @ torch.tensor(uncertainty, dtype=torch.double)[here.unlabeled])

    expected: list[int] = []
    for _ in range(NUM):
        free = [i for i in here.unlabeled if i not in expected]
        expected.append(max(free, key=lambda i: value([*here.labeled, *expected, i])))
    chosen = choose("uherding", here, NUM)
    assert chosen.indices == expected and chosen.passes == 5 + 114 + 40


def test_without_labels_it_is_max_herding() -> None:
    here = vector_situation(())
    assert choose("uherding", here, 6).indices == choose("max_herding", here, 6).indices
    here = vector_situation()
    assert choose("uherding", here, 6).indices != choose("max_herding", here, 6).indices


def test_copies_do_not_shrink_the_radius() -> None:
    angles = torch.tensor([0.0, 0.0, 0.3, 1.0, 1.001])
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert smallest_distance(points) == pytest.approx(2 * math.sin(0.15), abs=1e-5)
    assert smallest_distance(points[:1]) == smallest_distance(points[:2]) == 1
    assert smallest_distance(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == 1
    many = functional.normalize(torch.randn(2100, 3, generator=seeded()), dim=1)
    far = functional.normalize(torch.tensor([[1.0, 0, 0], [1.0, 0.05, 0]]), dim=1)
    spread = torch.cat([far[:1], many[:1].expand(2000, 3), far[1:]])
    assert smallest_distance(spread) == pytest.approx(float((far[0] - far[1]).norm()), abs=1e-4)


def test_labeled_images_count_as_covered() -> None:
    here = vector_situation()
    first = choose("uherding", here, 1).indices[0]
    after = replace(here, labeled=(*here.labeled, first), labels=(*here.labels, 0))
    assert first not in choose("uherding", after, 5).indices
