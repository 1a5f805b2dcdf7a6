"""Greedy coverage against loops over all candidates and targets."""

import math
from collections.abc import Callable

import pytest
import torch

from rarefish.acquisitions import pool_coverage
from rarefish.acquisitions.pool_coverage import Kernel, Scene, ball, cover, gaussian, read_scene
from tests.acquisitions.situations import seeded, vector_situation

SLOW: dict[str, tuple[Kernel, Callable[[float], float]]] = {
    "gaussian": (gaussian(0.7), lambda distance: math.exp(-((distance / 0.7) ** 2))),
    "narrow": (gaussian(0.05), lambda distance: math.exp(-((distance / 0.05) ** 2))),
    "ball": (ball(0.8), lambda distance: float(distance <= 0.8)),
}


def slow_cover(
    scene: Scene, similarity: Callable[[float], float], weight: list[float], bonus: list[float], count: int
) -> list[int]:
    """Chooses the row with the largest gain, where the other targets stand for all other images."""
    points, targets = scene.unlabeled_NF.double(), scene.targets_T.tolist()
    chosen_points = list(scene.labeled_LF.double())
    rows: list[int] = []

    def covered(n: int) -> float:
        return max((similarity(float((points[n] - point).norm())) for point in chosen_points), default=0.0)

    for _ in range(count):
        before = [covered(n) for n in range(len(points))]
        gains = {}
        for n in range(len(points)):
            others = [t for t in targets if t != n]
            added = [
                weight[t] * max(similarity(float((points[n] - points[t]).norm())) - before[t], 0.0) for t in others
            ]
            own = weight[n] * (1 - before[n])
            gains[n] = sum(added) * (len(points) - 1) / len(others) + own + bonus[n]
        rows.append(max((n for n in gains if n not in rows), key=lambda n: gains[n]))
        chosen_points.append(points[rows[-1]])
    return rows


@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.parametrize("num_targets", [1000, 25])
@pytest.mark.parametrize("already", [(), (3, 9, 11, 40, 77)])
def test_cover_equals_loops(
    kind: str, num_targets: int, already: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_coverage, "NUM_TARGETS", num_targets)
    monkeypatch.setattr(pool_coverage, "BLOCK", 7)
    scene = read_scene(vector_situation(already), seeded())
    num_images = 119 - len(already)
    assert scene.squares_NT.shape == (num_images, min(num_targets, num_images))
    assert len(scene.labeled_LF) == len(already)
    weight, bonus = torch.rand(num_images, generator=seeded(1)), torch.rand(num_images, generator=seeded(2)) / 10
    kernel, similarity = SLOW[kind]
    expected = slow_cover(scene, similarity, weight.tolist(), bonus.tolist(), 9)
    assert cover(scene, kernel, weight, bonus, 9) == expected


def test_every_image_can_be_chosen_once() -> None:
    scene = read_scene(vector_situation(), seeded())
    ones = torch.ones(114)
    assert sorted(cover(scene, ball(3.0), ones, 0 * ones, 114)) == list(range(114))


def test_a_large_pool_has_fewer_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_coverage, "MAX_ENTRIES", 1000)
    assert read_scene(vector_situation(), seeded()).squares_NT.shape == (114, 8)
    assert len(read_scene(vector_situation(), seeded()).targets_T.unique()) == 8
