"""Quotas per class against giving one label at a time, and SIMILAR against a greedy loop."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rarefish.acquisitions.class_balance import fill_quotas
from tests.acquisitions.situations import POOL, VALIDATION, choose, situation, slow_statistic
from tests.cases import Plain


@given(data=st.data(), num_classes=st.integers(1, 6), budget=st.integers(1, 20))
def test_quotas_equal_giving_one_at_a_time(data: st.DataObject, num_classes: int, budget: int) -> None:
    counts = st.lists(st.integers(0, 9), min_size=num_classes, max_size=num_classes)
    have, supply = data.draw(counts), data.draw(counts.filter(lambda given_: sum(given_) >= budget))
    slow = [0] * num_classes
    for _ in range(budget):
        open_ = [c for c in range(num_classes) if slow[c] < supply[c]]
        slow[min(open_, key=lambda c: (have[c] + slow[c], c))] += 1
    assert fill_quotas(have, supply, budget) == slow


@pytest.mark.parametrize(("name", "have"), [("balanced_entropy", [0] * 4), ("tail_first", [2, 1, 0, 0])])
def test_quotas_take_the_most_uncertain_per_predicted_class(name: str, have: list[int]) -> None:
    here = replace(situation(), labels=(0, 0, 1))
    with torch.no_grad():
        p = here.model(POOL.tensors[0]).softmax(dim=1)
    values = {i: slow_statistic("entropy", [p[i].tolist()]) for i in here.unlabeled}
    answers = {i: int(p[i].argmax()) for i in here.unlabeled}
    chosen = choose(name, here, 8).indices
    supply = [sum(a == c for a in answers.values()) for c in range(4)]
    for c, quota in enumerate(fill_quotas(have, supply, 8)):
        best = sorted((i for i in answers if answers[i] == c), key=lambda i: -values[i])[:quota]
        assert set(best) == {i for i in chosen if answers[i] == c}


def test_similar_covers_the_failures_greedily() -> None:
    here = situation()
    (images, truth), unlabeled = VALIDATION.tensors, here.unlabeled

    def gradient(image: Tensor, label: int | None) -> Tensor:
        """The gradient of the classifier's weights by autograd; for the predicted label if `label` is None."""
        assert isinstance(here.model, Plain)
        logits = here.model(image[None])
        target = logits.argmax(dim=1) if label is None else torch.tensor([label])
        (found,) = torch.autograd.grad(nn.functional.cross_entropy(logits, target), [here.model.fc.weight])
        return found.flatten() / found.norm()

    wrong = [m for m in range(12) if int(here.model(images[m : m + 1]).argmax()) != int(truth[m])]
    queries = [gradient(images[m], int(truth[m])) for m in wrong]
    pool = {i: gradient(POOL.tensors[0][i], None) for i in unlabeled}
    S = {i: [max(float(q @ g), 0.0) for q in queries] for i, g in pool.items()}

    def value(chosen: list[int]) -> float:
        return sum(max(S[i][q] for i in chosen) for q in range(len(queries))) + sum(max(S[i]) for i in chosen)

    chosen: list[int] = []
    for _ in range(5):
        chosen.append(max((i for i in unlabeled if i not in chosen), key=lambda i: value([*chosen, i])))
    assert choose("similar", here, 5).indices == chosen
