"""Core-set and BADGE against loops over all points."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rarefish.acquisitions.diversity import farthest_first, last_features, spread_out
from tests.acquisitions.situations import POOL, choose, seeded, situation
from tests.cases import Plain


def farthest_loop(points: Tensor, given_: list[int], first: int | None, count: int) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        if first is not None and not chosen:
            chosen.append(first)
            continue
        left = [i for i in range(len(points)) if i not in [*given_, *chosen]]
        distance = {i: min(float((points[i] - points[j]).square().sum()) for j in [*given_, *chosen]) for i in left}
        chosen.append(max(left, key=lambda i: distance[i]))
    return chosen


@given(num=st.integers(4, 25), num_given=st.integers(0, 3), data=st.data(), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_core_set_equals_a_loop(num: int, num_given: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, num - num_given))
    points = torch.randn(num, 6, generator=seeded(seed), dtype=torch.float64)
    num_candidates = data.draw(st.integers(1, num))
    rows = farthest_first(points, num_given, count, seeded(seed), num_candidates).tolist()
    first = rows[0] if num_given == 0 else None
    assert rows == farthest_loop(points, list(range(num_given)), first, count)


def test_core_set_sees_what_the_classifier_sees() -> None:
    here = situation()
    features, logits = last_features(here, [4, 2])
    assert isinstance(here.model, Plain)
    torch.testing.assert_close(here.model.fc(features), logits)
    everything = [*here.labeled, *here.unlabeled]
    points, _ = last_features(here, everything)
    assert choose("core_set", here, 4).indices == [everything[r] for r in farthest_loop(points, [0, 1, 2], None, 4)]


@given(num=st.integers(2, 20), data=st.data(), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_badge_equals_k_means_plus_plus_on_whole_gradients(num: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, num))
    left, right = (torch.randn(num, d, generator=seeded(seed + d), dtype=torch.float64) for d in (3, 5))
    gradients = torch.einsum("nc,nf->ncf", left, right).flatten(1)
    uniforms = torch.rand(count, generator=seeded(seed), dtype=torch.float64).tolist()
    rows = [int(gradients.square().sum(dim=1).argmax())]
    for uniform in uniforms[: count - 1]:
        weights = [min(float((g - gradients[r]).square().sum()) for r in rows) for g in gradients]
        is_reached = [sum(weights[: row + 1]) > uniform * sum(weights) for row in range(num)]
        rows.append(is_reached.index(True))
    assert spread_out(left, right, count, seeded(seed)).tolist() == rows


def test_badge_spreads_out_the_gradients_of_the_unlabeled_images() -> None:
    here = situation()
    assert isinstance(here.model, Plain)
    gradients = []
    for i in here.unlabeled:
        logits = here.model(POOL.tensors[0][[i]])
        loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1))
        gradients += torch.autograd.grad(loss, [here.model.fc.weight])
    gradients = torch.stack(gradients).flatten(1).double()
    rows = [int(gradients.square().sum(dim=1).argmax())]
    for uniform in torch.rand(6, generator=seeded(), dtype=torch.float64).tolist()[:5]:
        weights = torch.cdist(gradients, gradients[rows]).amin(dim=1).square()
        rows.append(int((weights.cumsum(dim=0) > uniform * weights.sum()).nonzero()[0]))
    assert choose("badge", here, 6).indices == [here.unlabeled[row] for row in rows]


def test_badge_takes_copies_only_when_nothing_else_is_left() -> None:
    left, right = torch.ones(6, 2), torch.ones(6, 3)
    left[5] *= 2
    rows = spread_out(left, right, 6, seeded()).tolist()
    assert rows[0] == 5 and sorted(rows) == list(range(6))


def test_badge_gradients_are_those_of_the_classifiers_weights() -> None:
    here = situation()
    features, logits = last_features(here, [7])
    probability = logits.softmax(dim=1)
    error = probability - torch.nn.functional.one_hot(probability.argmax(dim=1), 4)
    assert isinstance(here.model, Plain)
    here.model.eval()
    out = here.model(POOL.tensors[0][7:8])
    torch.nn.functional.cross_entropy(out, out.argmax(dim=1)).backward()
    assert here.model.fc.weight.grad is not None
    torch.testing.assert_close(torch.outer(error[0], features[0]), here.model.fc.weight.grad)
