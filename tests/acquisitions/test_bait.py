"""BAIT against forward selection and backward elimination with a matrix inverse for each candidate."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rarefish.acquisitions import bait
from rarefish.acquisitions.bait import Design, information_factors, minimize_trace, reduce_dimensions
from tests.acquisitions.situations import choose, seeded, vector_situation, vectors


def slow_trace(vectors: list[Tensor], known: list[Tensor], everything: list[Tensor], ridge: float) -> float:
    information = ridge * torch.eye(len(everything[0]), dtype=torch.float64)
    for v in [*known, *vectors]:
        information = information + torch.outer(v, v)
    total = sum((torch.outer(v, v) for v in everything), torch.zeros_like(information))
    return float((information.inverse() @ total).trace())


def slow_choice(vectors: dict[int, Tensor], known: list[Tensor], count: int, most: int, ridge: float) -> list[int]:
    everything = [*vectors.values(), *known]

    def trace(chosen: list[int]) -> float:
        return slow_trace([vectors[i] for i in chosen], known, everything, ridge)

    chosen: list[int] = []
    for _ in range(most):
        chosen.append(min((i for i in vectors if i not in chosen), key=lambda i: trace([*chosen, i])))
    while len(chosen) > count:
        chosen.remove(min(chosen, key=lambda i: trace([j for j in chosen if j != i])))
    return chosen


def test_it_minimizes_the_trace_by_adding_and_removing() -> None:
    here, images = vector_situation(), vectors("pool").tensors[0].double()
    with torch.no_grad():
        p = here.model(vectors("pool").tensors[0]).double().softmax(dim=1)
    used = [*here.labeled, *here.unlabeled]
    scale = (sum(float(x) ** 2 for i in used for x in images[i]) / len(used) / 12) ** 0.5
    factors = {i: images[i] / scale * float(p[i].max() * (1 - p[i].max())) ** 0.5 for i in used}
    known = [factors[i] for i in here.labeled]
    expected = slow_choice({i: factors[i] for i in here.unlabeled}, known, 6, 12, 1.0)
    chosen = choose("bait", here, 6)
    assert chosen.indices == expected and chosen.passes == 119


@pytest.mark.parametrize(("oversampling", "ridge"), [(1.0, 1.0), (1.5, 0.1), (3.0, 10.0)])
def test_settings(oversampling: float, ridge: float) -> None:
    vectors_NF = torch.randn(20, 5, generator=seeded(), dtype=torch.float64)
    known = torch.randn(3, 5, generator=seeded(1), dtype=torch.float64)
    expected = slow_choice(dict(enumerate(vectors_NF)), list(known), 4, round(4 * oversampling), ridge)
    assert minimize_trace(vectors_NF, known, 4, oversampling, ridge) == expected
    assert minimize_trace(vectors_NF, known, 20, oversampling, ridge) == minimize_trace(
        vectors_NF, known, 20, 1.0, ridge
    )


def test_changes_keep_the_inverse_and_undo_each_other() -> None:
    vectors_NF = torch.randn(20, 5, generator=seeded(), dtype=torch.float64)
    design, before = (Design.of(vectors_NF, vectors_NF[:2], 0.5) for _ in range(2))
    for row, sign in [(3, 1), (7, 1), (3, -1), (4, 1), (4, -1)]:
        design.change(row, sign)
    expected = Design.of(torch.cat([vectors_NF]), vectors_NF[[0, 1, 7]], 0.5)
    torch.testing.assert_close(design.inverse_FF, expected.inverse_FF)
    torch.testing.assert_close(design.leverage_N, expected.leverage_N)
    # The sum over all images counts the labeled ones twice here, so only the labeled row 7 differs.
    total = before.vectors_NF.T @ vectors_NF + vectors_NF[:2].T @ vectors_NF[:2]
    product = design.inverse_FF @ total @ design.inverse_FF
    torch.testing.assert_close(design.product_FF, product)
    torch.testing.assert_close(design.effect_N, ((vectors_NF @ product) * vectors_NF).sum(dim=1))


def test_many_features_are_projected_on_the_principal_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bait, "MAX_DIMENSIONS", 3)
    points = torch.randn(40, 7, generator=seeded(), dtype=torch.float64) * torch.tensor([1, 5, 1, 4, 1, 6, 0.5])
    found = reduce_dimensions(points)
    u, s, _ = torch.linalg.svd(points, full_matrices=False)
    principal = u[:, :3] * s[:3]
    torch.testing.assert_close(found @ found.T, principal @ principal.T)
    assert len(set(choose("bait", vector_situation(), 9).indices)) == 9


def test_the_unit_of_the_features_does_not_matter() -> None:
    features, logits = torch.randn(9, 4, generator=seeded()), torch.randn(9, 3, generator=seeded(1))
    torch.testing.assert_close(information_factors(1000 * features, logits), information_factors(features, logits))


def test_labeled_images_count() -> None:
    here = vector_situation()
    chosen = choose("bait", here, 10).indices
    more = replace(here, labeled=(*here.labeled, *chosen[:5]), labels=(0,) * 10)
    assert set(choose("bait", more, 5).indices) != set(chosen[:5])
    assert choose("bait", vector_situation(()), 10).indices != chosen
